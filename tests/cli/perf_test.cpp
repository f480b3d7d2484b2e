// SPDX-License-Identifier: Apache-2.0
// Invalid options of `shardwire perf`, and their errors.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <ostream>

#include "support/command.hpp"

BOOST_AUTO_TEST_SUITE(perf_usage)

namespace {

using namespace shardwire::test;
using Words = std::vector<std::string>;

struct Usage {
  const char* title;
  Words words;
  const char* says;
};
std::ostream& operator<<(std::ostream& out, const Usage& usage) {
  return out << usage.title;
}

const Usage usages[] = {
    {"missing_case", {"/nonexistent/case.json"}, "/nonexistent/case.json: No such file"},
    {"unknown_transport", {"--transport", "pigeon"}, "no transport named \"pigeon\""},
    {"device_memory", {"--memory", "cuda"}, "--memory cuda: "},
    {"unknown_method", {"--method", "sideways"}, "'sideways' is unknown"},
    {"local_is_no_method_to_force", {"-", "--method", "local"}, "'local' is unknown"},
    {"local_between_processes", {"--method", "local", "--disjoint"}, "nothing is local between different processes"},
    {"unknown_bound",
     {"--against", "memcpy,rsync"},
     "'rsync' is unknown; known are memcpy, ucx, mpi, unverified, contiguous, ucp_get, fi_read, nccl, or none alone"},
    {"runs_of_odd_length", {"--runs", "6"}, "6 is not a multiple of 4 bytes"},
    {"runs_longer_than_all", {"--runs", "1M", "--bytes", "4K"}, "longer than the 4096 bytes"},
    {"dots_without_a_start", {"--runs", "..,4K"}, "goes on from two lengths"},
    {"dots_without_an_end", {"--runs", "1K,4K,.."}, "a length is missing"},
    {"one_rank", {"--ranks", "1"}, "2 to 256 are expected"},
    {"odd_ranks_apart", {"--ranks", "3", "--disjoint"}, "an even number"},
    {"no_repeats", {"--repeats", "0"}, "1 to 1000"},
    {"layers_without_case", {"--layers", "2"}, "belongs to a CASE"},
    {"replicas_without_case", {"--replicas", "first"}, "belongs to a CASE"},
    {"no_staging", {"--staging", "0"}, "moves nothing"},
    {"no_rate", {"--rate", "0"}, "nothing would ever arrive"},
    {"unknown_digest", {"--verify", "maybe"}, "'maybe' is unknown"},
    {"tcp_over_loopback", {"--tcp", "--transport", "loopback"}, "threads of one process"},
    {"tcp_within_a_host", {"--tcp", "--transport", "shm,tcp"}, "--tcp: shm stays within a host"},
    {"digests_against_none", {"--against", "unverified"}, "is for restores with digests"},
    {"digests_against_the_former_none",
     {"--verify", "none", "--against", "unverified"},
     "is for restores with digests"},
    {"pairs_disjoint", {"--pairs", "--disjoint"}, "it takes no --disjoint"},
    {"pairs_too_many", {"--pairs", "--ranks", "33"}, "at most 32 processes take part"},
    {"rounds_of_host_memory", {"--transport", "nccl"}, "--transport nccl: it moves device memory"},
    {"loop_of_rounds_beside_restores", {"--against", "nccl"}, "is for exchanges in rounds of NCCL"},
    {"fresh_against_others", {"--fresh", "2", "--against", "memcpy"}, "--fresh: takes no --against"},
    {"less_than_one_start", {"--fresh", "0"}, "1 to 1000 are expected"},
    {"missing_calibration", {"--calibration", "/nonexistent/costs.json"}, "/nonexistent/costs.json"},
    {"output_nowhere", {"--output", "/nonexistent/rows.jsonl"}, "/nonexistent/rows.jsonl"},
    {"rows_twice", {"--json", "--output", "/tmp/rows.jsonl"}, "--json prints the rows, --output writes them: name one"},
    {"runs_of_a_case", {"-", "--runs", "4K"}, "--runs belongs to a sweep"},
    {"ranks_of_a_case", {"-", "--ranks", "4"}, "--ranks belongs to a sweep"},
    {"layers_without_model", {"-", "--layers", "1"}, "standard input: layers: is valid only together with a model"},
    {"calibration_over_tcp", {"--tcp", "--calibrate"}, "takes no --tcp"},
    {"calibration_of_ordinary_memory", {"--ordinary", "--calibrate"}, "takes no --ordinary"},
    {"calibration_of_device_memory", {"--memory", "cuda", "--calibrate"}, "takes no --memory"},
    {"calibration_in_rows", {"--json", "--calibrate"}, "takes no --json"},
    {"calibration_in_a_file_of_rows", {"--output", "/tmp/rows.jsonl", "--calibrate"}, "takes no --output"},
    {"calibration_by_another", {"--calibration", "costs.json", "--calibrate"}, "takes no --calibration"},
    {"calibration_with_a_name", {"--target", "mine", "--calibrate"}, "takes no --target"},
    {"calibration_with_digests", {"--verify", "digest", "--calibrate"}, "takes no --verify"},
    {"calibration_of_replicas", {"--replicas", "first", "--calibrate"}, "takes no --replicas"},
    {"calibration_within_a_process", {"--transport", "loopback", "--calibrate"}, "loopback reaches no other process"},
};

const char* const two_ranks = R"j({"name": "square", "tensors": [{"fqn": "w", "shape": [64, 64]}],
  "source": {"ranks": 2, "rules": {"*": {"chunk": 0, "over": 2}}},
  "target": {"ranks": 2, "rules": {"*": {"chunk": 1, "over": 2}}}})j";

}  // namespace

BOOST_DATA_TEST_CASE(is_refused_before_anything_runs, boost::unit_test::data::make(usages), sample) {
  Words words = sample.words;
  words.insert(words.begin(), "perf");
  const CommandResult result = run_command(words, two_ranks);
  BOOST_TEST(result.exit_code == 2);
  BOOST_TEST(result.err.find(sample.says) != std::string::npos, result.err);
  BOOST_TEST(result.out == "");
}

BOOST_AUTO_TEST_CASE(a_loop_of_reads_needs_its_library_and_a_provider) {
  const CommandResult result =
      run_command({"perf", "-", "--against", "fi_read"}, two_ranks, {{"FI_PROVIDER", "no_such_provider"}});
  BOOST_TEST(result.exit_code == 2);
  const bool off = result.err.find("--against fi_read: this build has no libfabric") != std::string::npos;
  const bool none = result.err.find("--against fi_read: libfabric ") != std::string::npos &&
                    result.err.find("FI_PROVIDER is \"no_such_provider\"") != std::string::npos;
  BOOST_TEST((off || none), result.err);
  BOOST_TEST(result.out == "");
}

BOOST_AUTO_TEST_SUITE_END()
