// SPDX-License-Identifier: Apache-2.0
// The program that `shardwire perf --against mpi` starts by mpirun: the same cases as one MPI_Alltoallw each, turn by
// turn with the command's own processes. A separate program, so that the command needs no MPI.
#include <fmt/format.h>
#include <time.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "perf/measure/alltoallw.hpp"
#include "perf/measure/mpi_order.hpp"
#include "perf/measure/private_pages.hpp"
#include "perf/measure/processes.hpp"

namespace {

using namespace shardwire;
using namespace shardwire::perf;

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

std::int64_t cpu_now_ns() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return std::int64_t{used.tv_sec} * 1'000'000'000 + used.tv_nsec;
}

std::string library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string_view all(text, static_cast<std::size_t>(length));
  return std::string(all.substr(0, all.find(',')));
}

// A control variable that is a number with names, as text.
std::string named_variable(const char* name) {
  int provided = 0;
  int index = 0;
  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return "unknown";
  std::string found = "unknown";
  MPI_T_cvar_handle handle = nullptr;
  int count = 0;
  if (MPI_T_cvar_get_index(name, &index) == MPI_SUCCESS &&
      MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) == MPI_SUCCESS) {
    char text[256] = "";
    int text_length = sizeof text;
    int verbosity = 0;
    int scope = 0;
    int binding = 0;
    int description_length = 0;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_T_enum names = MPI_T_ENUM_NULL;
    MPI_T_cvar_get_info(index, text, &text_length, &verbosity, &type, &names, nullptr, &description_length, &binding,
                        &scope);
    int value = 0;
    MPI_T_cvar_read(handle, &value);
    int items = 0;
    char enum_name[64] = "";
    int enum_length = sizeof enum_name;
    if (names != MPI_T_ENUM_NULL && MPI_T_enum_get_info(names, &items, enum_name, &enum_length) == MPI_SUCCESS) {
      for (int item = 0; item < items; ++item) {
        int number = 0;
        text_length = sizeof text;
        if (MPI_T_enum_get_item(names, item, &number, text, &text_length) == MPI_SUCCESS && number == value)
          found = text;
      }
    }
    MPI_T_cvar_handle_free(&handle);
  }
  MPI_T_finalize();
  return found;
}

// The same turns as Contest in member.cpp, idle in turns of other references.
MeasurementFacts take_turns(const Setup& setup, const Measurement& measurement, int me, Barrier& barrier) {
  StateMemory held(measurement.job.source, source_of(setup, measurement.job, me));
  StateMemory wanted(measurement.job.target, target_of(setup, measurement.job, me));
  const auto turns = turns_of(measurement);
  const bool used = std::any_of(turns.begin(), turns.end(), [](const Turn& t) { return t.kind == Turn::Kind::mpi; });
  const auto held_pages = private_pages(used ? held.size_bytes() : 0);
  const auto wanted_pages = private_pages(used ? wanted.size_bytes() : 0);
  MeasurementFacts facts;
  facts.wanted = wanted.payload_bytes();
  facts.turns.resize(turns.size());
  for (TurnFacts& turn : facts.turns) turn.spans.resize(static_cast<std::size_t>(setup.repeats) + 1);
  std::unique_ptr<Alltoallw> all;
  if (used) {
    held.lie_in({held_pages.get(), static_cast<std::size_t>(held.size_bytes())});
    wanted.lie_in({wanted_pages.get(), static_cast<std::size_t>(wanted.size_bytes())});
    held.fill();
    if (wanted_pages) std::memset(wanted_pages.get(), 1, wanted.size_bytes());
    all = std::make_unique<Alltoallw>(setup, measurement.job, me, held, wanted);
  }
  Span unused;
  Span* last = &unused;
  const auto meet = [&] {
    barrier.wait();
    last->cpu_ns += cpu_now_ns();
    last = &unused;
  };
  for (std::size_t repeat = 0; repeat <= static_cast<std::size_t>(setup.repeats); ++repeat) {
    for (std::size_t turn = 0; turn < turns.size(); ++turn) {
      meet();
      if (turns[turn].kind != Turn::Kind::mpi) continue;
      Span& span = facts.turns[turn].spans[repeat];
      last = &span;
      span.cpu_ns = -cpu_now_ns();
      span.begin_ns = now_ns();
      all->run(held_pages.get(), wanted_pages.get());
      span.end_ns = now_ns();
    }
  }
  meet();
  for (std::size_t turn = 0; turn < turns.size(); ++turn) {
    const bool mine = turns[turn].kind == Turn::Kind::mpi;
    if (!is_checked(turns[turn])) continue;
    if (mine) wanted.spoil();
    meet();
    if (mine) all->run(held_pages.get(), wanted_pages.get());
    meet();
    if (mine) facts.turns[turn].elements = static_cast<std::uint64_t>(wanted.check());
  }
  meet();
  return facts;
}

// By rank, on rank 0.
std::vector<MemberFacts> gather(const MemberFacts& mine, int me, int members) {
  const std::string text = to_json(mine).dump();
  int size = static_cast<int>(text.size());
  std::vector<int> sizes(static_cast<std::size_t>(members));
  check_mpi(MPI_Gather(&size, 1, MPI_INT, sizes.data(), 1, MPI_INT, 0, MPI_COMM_WORLD), "MPI_Gather");
  std::vector<int> starts;
  int total = 0;
  for (const int one : sizes) {
    starts.push_back(total);
    total += one;
  }
  std::string all(static_cast<std::size_t>(total), ' ');
  check_mpi(
      MPI_Gatherv(text.data(), size, MPI_CHAR, all.data(), sizes.data(), starts.data(), MPI_CHAR, 0, MPI_COMM_WORLD),
      "MPI_Gatherv");
  std::vector<MemberFacts> out;
  for (int rank = 0; me == 0 && rank < members; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    const auto one = all.substr(static_cast<std::size_t>(starts[at]), static_cast<std::size_t>(sizes[at]));
    out.push_back(member_facts_from(nlohmann::json::parse(one)));
  }
  return out;
}

void run(const MpiFolder& folder, int me, int members) {
  const Setup setup = read_order(folder);
  if (members != setup.members()) throw std::runtime_error("mpirun started another number of processes");
  const auto pages = shared_file_pages(folder.barrier(), sizeof(Barrier));
  auto& barrier = *static_cast<Barrier*>(pages.get());
  MemberFacts mine;
  for (const Measurement& measurement : setup.measurements) {
    mine.measurements.push_back(take_turns(setup, measurement, me, barrier));
  }
  MpiFacts facts;
  facts.members = gather(mine, me, members);
  if (me != 0) return;
  facts.version = library_version();
  facts.transport = setup.tcp ? "tcp" : "vader, single copy by " + named_variable("btl_vader_single_copy_mechanism");
  write_facts(folder, facts);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "shardwire-mpi-alltoallw: started by `shardwire perf --against mpi`\n");
    return 2;
  }
  MPI_Init(&argc, &argv);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int me = 0;
  int members = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &me);
  MPI_Comm_size(MPI_COMM_WORLD, &members);
  try {
    run({argv[1]}, me, members);
  } catch (const std::exception& error) {
    fmt::print(stderr, "shardwire-mpi-alltoallw: process {}: {}\n", me, error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
