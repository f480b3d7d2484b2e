// SPDX-License-Identifier: Apache-2.0
// An MPI program: rows are spread over the ranks of a communicator, and each wants columns. Two communicators at once, then
// all ranks together.
//   mpi_test later         the same, after a session that MPI knew nothing of
//   mpi_test absent RANK   that rank does not come, and the others say who is missing
//   mpi_test alone         MPI runs alone although several processes were started: that is refused
#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
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

// Whether all that arrived is right.
bool rows_to_columns(MPI_Comm comm, float seed) {
  auto session = Session::join(bootstrap_from_mpi(comm), {.join_timeout = 60s});
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
  auto restore = session.restore(wanted, {.deadline = 60s});
  restore.wait();
  session.gather("restored", {}, 60s);
  publication.retire(10s);
  return restored.front() == seed && restored.back() == seed + static_cast<float>(ranks - 1);
}

// Whether the others say that rank `absent` is missing: those that wait for rank 0 cannot join.
bool without(int absent, int rank) {
  if (rank == absent) {
    std::this_thread::sleep_for(6s);
    return true;
  }
  std::optional<Session> session;
  try {
    session = Session::join(bootstrap_from_mpi(MPI_COMM_WORLD, 2s), {.join_timeout = 2s});
    session->gather("joined", {}, 2s);
  } catch (const Error& error) {
    if (rank == 0) std::this_thread::sleep_for(2s);  // the others hear from it who is missing
    std::printf("rank %d: %s: %s\n", rank, std::string(to_string(error.code())).c_str(), error.what());
    return error.code() == ErrorCode::timed_out && error.ranks() == std::vector<Rank>{Rank{absent}};
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  bool fine = true;
  try {
    bootstrap_from_mpi(MPI_COMM_WORLD);
    fine = false;
  } catch (const Error& error) {  // it is too early
    fine = error.code() == ErrorCode::invalid_argument;
  }
  // What the launcher is asked here must not keep MPI from it.
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
      fine = without(std::atoi(argv[2]), rank);
    } else {
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
