// SPDX-License-Identifier: Apache-2.0
// An MPI program: the ranks of a communicator hold rows, and each wants columns. Two communicators at once, then all
// ranks together.
//   mpi_test later         the same, after a session that was joined without MPI
//   mpi_test absent RANK SECONDS  that rank does not come, and the errors of the others, which wait so long, name it
//   mpi_test absent-pmix RANK SECONDS  the same, by bootstrap_from_env() and without MPI
//   mpi_test again         the same as without arguments, after a join that all ranks but rank 0 missed
//   mpi_test unbuffered    MPI buffers nothing: rank 0 waits as long as the environment allows; then all join
//   mpi_test receive-fault, send-fault  a call of MPI fails in a join; then all join
//   mpi_test alone         MPI has one rank although several processes were started: an error
#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <shardwire/mpi.hpp>
#include <shardwire/shardwire.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

using namespace shardwire;
using namespace std::chrono_literals;

namespace {

// Behaviour of MPI, changed through its profiling interface.
bool buffers_nothing = false;
int polls_to_fault = 0;       // the call after that many fails
int send_to_fail = -1;        // sends to this rank fail
const void* sent = nullptr;   // the bytes of the first send
std::vector<std::byte> copy;  // copy of these bytes

bool poll_fails() {
  return polls_to_fault > 0 && --polls_to_fault == 0;
}

}  // namespace

extern "C" {

int MPI_Isend(const void* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  if (to == send_to_fail) return MPI_ERR_OTHER;
  if (sent == nullptr) {
    sent = buffer;
    copy.resize(static_cast<std::size_t>(count));
    std::memcpy(copy.data(), buffer, copy.size());
  }
  return buffers_nothing ? PMPI_Issend(buffer, count, type, to, tag, comm, request)
                         : PMPI_Isend(buffer, count, type, to, tag, comm, request);
}
int MPI_Test(MPI_Request* request, int* done, MPI_Status* status) {
  return poll_fails() ? MPI_ERR_OTHER : PMPI_Test(request, done, status);
}
int MPI_Iprobe(int from, int tag, MPI_Comm comm, int* there, MPI_Status* status) {
  return poll_fails() ? MPI_ERR_OTHER : PMPI_Iprobe(from, tag, comm, there, status);
}

}  // extern "C"

namespace {

// Whether all values that arrived are right.
bool rows_to_columns(MPI_Comm comm, float seed) {
  auto session = Session::join(bootstrap_from_mpi(comm), {.join_timeout = 20s});
  const Rank me{session.rank()};
  const int ranks = session.world_size();
  const TensorSpec weight{{"weight", "exp_avg"}, DType::f32, {64, 48}};
  const Layout rows = Layout::chunk(0, ranks);
  const Layout columns = Layout::chunk(1, ranks);
  std::vector<float> shard(static_cast<std::size_t>(rows.local_elements(weight.shape, me)), seed);
  for (float& value : shard) value += static_cast<float>(session.rank());
  Catalog held(me, ranks);
  held.add(weight, rows, view(shard));
  auto publication = session.publish(held, {.step = 1});

  std::vector<float> restored(static_cast<std::size_t>(columns.local_elements(weight.shape, me)), -1.0F);
  Catalog wanted(me, ranks);
  wanted.add(weight, columns, view(restored));
  auto restore = session.restore(wanted, {.timeout = 60s});
  restore.wait();
  session.gather("restored", {}, 60s);
  publication.retire(10s);
  return restored.front() == seed && restored.back() == seed + static_cast<float>(ranks - 1);
}

// Whether the other ranks' errors name rank `absent` as missing: ranks that wait for rank 0 cannot join.
bool without(int absent, std::chrono::seconds wait, int rank, const std::function<Bootstrap()>& bootstrap) {
  if (rank == absent) {
    std::this_thread::sleep_for(3 * wait);
    return true;
  }
  std::optional<Session> session;
  try {
    session = Session::join(bootstrap(), {.join_timeout = wait});
    session->gather("joined", {}, wait);
  } catch (const Error& error) {
    if (rank == 0) std::this_thread::sleep_for(wait);  // the others learn from it which rank is missing
    std::printf("rank %d: %s: %s\n", rank, std::string(to_string(error.code())).c_str(), error.what());
    return error.code() == ErrorCode::timed_out && error.ranks() == std::vector<Rank>{Rank{absent}};
  }
  return false;
}

std::optional<Error> failure_of_join(const SessionOptions& options) {
  try {
    Session::join(bootstrap_from_mpi(MPI_COMM_WORLD), options);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

// Joins that fail on all ranks; returns whether they fail as specified. Rank 0 leaves messages that are not received.
bool missed_each_other(int rank) {
  bool fine = true;
  if (rank != 0) {
    const auto failure = failure_of_join({.join_timeout = 200ms});
    fine = failure && failure->code() == ErrorCode::timed_out && failure->ranks() == std::vector<Rank>{Rank{0}};
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) fine = !failure_of_join({.join_timeout = 20s});
  return fine;
}

bool kept_the_time_to_join(int rank) {
  if (rank != 0) return true;
  ::setenv("SHARDWIRE_JOIN_TIMEOUT", "1.5", 1);
  buffers_nothing = true;
  const auto began = std::chrono::steady_clock::now();
  const auto failure = failure_of_join({});
  const auto took = std::chrono::steady_clock::now() - began;
  return failure && failure->code() == ErrorCode::timed_out && failure->ranks() == std::vector{Rank{1}, Rank{2}} &&
         took >= 1500ms && took < 15s;
}

bool lived_through_a_poll_that_fails(int rank) {
  if (rank != 1) return true;
  polls_to_fault = 3;
  const auto failure = failure_of_join({.join_timeout = 20s});
  return failure && failure->code() == ErrorCode::transport_failed;
}

bool lived_through_a_send_that_fails(int rank) {
  if (rank != 0) return true;
  buffers_nothing = true;
  send_to_fail = 2;
  const auto failure = failure_of_join({.join_timeout = 20s});
  send_to_fail = -1;
  // The unread part of the first message is still there.
  return failure && failure->code() == ErrorCode::transport_failed && std::memcmp(sent, copy.data(), copy.size()) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  const int absent = argc > 3 ? std::atoi(argv[2]) : -1;
  const std::chrono::seconds wait(argc > 3 ? std::atoi(argv[3]) : 0);
  bool fine = true;
  try {
    bootstrap_from_mpi(MPI_COMM_WORLD);
    fine = false;
  } catch (const Error& error) {  // too early
    fine = error.code() == ErrorCode::invalid_argument;
  }
  if (mode == "absent-pmix") {
    const Bootstrap bootstrap = bootstrap_from_env();
    return without(absent, wait, bootstrap.rank, [&] { return bootstrap; }) ? 0 : 1;
  }
  // Queries to the launcher here must not interfere with MPI.
  if (mode == "later") {
    auto session = Session::join(bootstrap_from_env());
    session.gather("joined", {}, 60s);
    session.close(10s);
  }
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  try {
    if (mode == "absent") {
      fine = without(absent, wait, rank, [] { return bootstrap_from_mpi(MPI_COMM_WORLD); });
    } else {
      if (mode == "again") fine = missed_each_other(rank) && fine;
      if (mode == "unbuffered") fine = kept_the_time_to_join(rank) && fine;
      if (mode == "receive-fault") fine = lived_through_a_poll_that_fails(rank) && fine;
      if (mode == "send-fault") fine = lived_through_a_send_that_fails(rank) && fine;
      if (!fine) std::printf("rank %d: the first join did not end as it should\n", rank);
      MPI_Barrier(MPI_COMM_WORLD);
      MPI_Comm half = MPI_COMM_NULL;
      MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
      fine = rows_to_columns(half, static_cast<float>(10 * (1 + rank % 2))) && fine;
      MPI_Comm_free(&half);
      fine = rows_to_columns(MPI_COMM_WORLD, 1000.0F) && fine;
      if (fine) std::puts("all is there");
    }
  } catch (const Error& error) {
    std::printf("rank %d: %s: %s\n", rank, std::string(to_string(error.code())).c_str(), error.what());
    fine = mode == "alone" && error.code() == ErrorCode::transport_failed;
  }
  MPI_Finalize();
  return fine ? 0 : 1;
}
