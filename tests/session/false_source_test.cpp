// SPDX-License-Identifier: Apache-2.0
// Sources that send false answers: a restore ends with a typed error, soon, and writes nothing outside the destination.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <future>
#include <stdexcept>

#include "session/false_source.hpp"
#include "support/deadline.hpp"
#include "support/job.hpp"
#include "support/open_descriptors.hpp"
#include "transport/bytes.hpp"

BOOST_AUTO_TEST_SUITE(false_source)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t elements = 100'000;

TensorSpec spec() {
  return {{"w", "exp_avg"}, DType::f32, {static_cast<Extent>(elements)}};
}

/// A reader, its destination with guard bytes around it, and a false source.
struct Job {
  std::uint16_t port = free_port();
  Session reader = Session::join(member(0, 2, port), quick());
  TestShard held{spec(), Layout::replicated(), Rank{0}};
  std::unique_ptr<transport::Fabric> shm = transport::choose("shm").open();
  std::unique_ptr<transport::Region> arena = shm->allocate(held.size_bytes());
  GuardedBytes destination{held.size_bytes()};
  TestShard wanted{spec(), Layout::replicated(), Rank{0}};
  std::unique_ptr<FalseSource> source;

  Job() {
    held.use(arena->memory().address);
    held.fill(1);
    wanted.use(destination.data());
    Catalog catalog(Rank{0}, 1);
    held.add_to(catalog);
    source = std::make_unique<FalseSource>(port, catalog);
  }
  void restore(Duration timeout = 20s) { restore(within(timeout)); }
  void restore_by(RestoreMethod method) {
    RestoreOptions options = within(patience);
    options.method = method;
    restore(options);
  }
  void restore(const RestoreOptions& options) {
    Catalog catalog(Rank{0}, 1);
    wanted.add_to(catalog);
    reader.restore(catalog, options).wait();
  }
  void refuse_reads(int times);
};

/// An answer to Bind, the descriptors sent with it, and their announcement.
struct BindAnswer {
  wire::Bound bound;
  std::vector<int> descriptors;
  std::uint8_t announced = 0;
};

/// The correct answer.
BindAnswer truth(const Job& job, const wire::Bind& asked) {
  BindAnswer answer;
  answer.descriptors = job.arena->descriptors();
  answer.announced = static_cast<std::uint8_t>(answer.descriptors.size());
  answer.bound.request = asked.request;
  answer.bound.max_pack_bytes = 1 << 20;
  if (asked.fabrics.front().name == "shm") {
    answer.bound.addresses = {job.shm->address()};
    answer.bound.regions = {{job.arena->memory().bytes, {{0, job.arena->key(), answer.announced}}}};
  } else {
    answer.bound.addresses = {transport::choose("tcp").open()->address()};
    answer.bound.regions = {{job.arena->memory().bytes, {}}};
    answer.descriptors.clear();
    answer.announced = 0;
  }
  answer.bound.tensors = {{0, 0, 0, {}}};
  return answer;
}

void send(Connection& reader, const wire::Bind& asked, const BindAnswer& answer) {
  if (answer.announced > 0) reader.send(wire::Descriptors{asked.request, answer.announced}, answer.descriptors);
  reader.send(answer.bound);
}

// The first answers contain a withdrawn key, whatever the source publishes.
void Job::refuse_reads(int times) {
  Bytes memory(arena->memory().bytes);
  const Bytes key = shm->adopt(transport::host_memory(memory))->key();
  source->answer_with([this, key, left = times](Connection& reader_of_it, const wire::Bind& asked) mutable {
    BindAnswer answer = truth(*this, asked);
    if (asked.fabrics.front().name == "shm" && left-- > 0) {
      answer.bound.regions[0].keys[0] = {0, key, 0};
      answer.announced = 0;
    }
    send(reader_of_it, asked, answer);
  });
}

support::Descriptor memory_file(std::size_t bytes, int seals) {
  support::Descriptor file(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const bool made =
      ::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0 && ::fcntl(file.get(), F_ADD_SEALS, seals) == 0;
  if (!made) throw std::runtime_error("no sealed file");  // not on the test's thread, so it throws
  return file;
}

/// Fails unless all descriptors opened since are closed again, except one that a case keeps open.
class NothingLeaks {
 public:
  ~NothingLeaks() {
    const auto same = [&] { return open_descriptors() <= before_ + 1; };
    BOOST_TEST(run_until([] { std::this_thread::sleep_for(10ms); }, same, 10s));
  }

 private:
  std::size_t before_ = open_descriptors();
};

/// A fault of an answer over shm.
struct Lie {
  const char* what;
  std::function<void(BindAnswer&)> tell;
  friend std::ostream& operator<<(std::ostream& out, const Lie& lie) { return out << lie.what; }
};

// Stays open: the descriptors are sent by number.
int kept(support::Descriptor descriptor) {
  static auto& all = *new std::vector<support::Descriptor>;
  all.push_back(std::move(descriptor));
  return all.back().get();
}
std::function<void(BindAnswer&)> instead(const std::function<support::Descriptor()>& open) {
  return [open](BindAnswer& answer) { answer.descriptors.back() = kept(open()); };
}
support::Descriptor opened(const char* path, int flags) {
  return support::Descriptor(::open(path, flags | O_CLOEXEC));
}

constexpr int all_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;
const std::size_t arena_pages_bytes = (elements * sizeof(float) + 4095) / 4096 * 4096;

std::vector<Lie> lies() {
  return {
      {"fewer_descriptors_than_the_key_says", [](BindAnswer& a) { ++a.bound.regions[0].keys[0].descriptors; }},
      {"fewer_descriptors_than_announced", [](BindAnswer& a) { ++a.announced; }},
      {"no_descriptors_at_all", [](BindAnswer& a) { a.announced = 0; }},
      {"fewer_for_the_key_than_belong_to_it", [](BindAnswer& a) { a.bound.regions[0].keys[0].descriptors = 0; }},
      {"an_empty_file", instead([] { return opened("/dev/null", O_RDONLY); })},
      {"zeros", instead([] { return opened("/dev/zero", O_RDWR); })},
      {"a_folder", instead([] { return opened("/", O_RDONLY | O_DIRECTORY); })},
      {"a_path", instead([] { return opened("/", O_PATH); })},
      {"a_socket", instead([] { return support::Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); })},
      {"memory_that_is_not_sealed", instead([] { return memory_file(arena_pages_bytes, 0); })},
      {"memory_that_can_be_cut_short", instead([] { return memory_file(arena_pages_bytes, F_SEAL_FUTURE_WRITE); })},
      {"memory_that_readers_could_write_to",
       instead([] { return memory_file(arena_pages_bytes, F_SEAL_SHRINK | F_SEAL_GROW); })},
      {"memory_that_is_too_short", instead([] { return memory_file(4096, all_seals); })},
      {"memory_that_is_too_long", instead([] { return memory_file(2 * arena_pages_bytes, all_seals); })},
      {"a_key_of_nothing", [](BindAnswer& a) { a.bound.regions[0].keys[0].key = Bytes(8); }},
      {"a_garbled_key", [](BindAnswer& a) { a.bound.regions[0].keys[0].key[9] ^= std::byte{1}; }},
      {"a_region_longer_than_it_is", [](BindAnswer& a) { a.bound.regions[0].size_bytes *= 2; }},
      {"a_region_as_long_as_can_be_said", [](BindAnswer& a) { a.bound.regions[0].size_bytes = ~0ULL; }},
      {"a_tensor_beyond_its_region", [](BindAnswer& a) { a.bound.tensors[0].offset_bytes = 4; }},
      {"a_tensor_far_away", [](BindAnswer& a) { a.bound.tensors[0].offset_bytes = ~0ULL - 3; }},
      {"a_tensor_with_strides_that_leave_it", [](BindAnswer& a) { a.bound.tensors[0].strides = {2}; }},
      {"a_tensor_with_strides_beyond_all_memory", [](BindAnswer& a) { a.bound.tensors[0].strides = {1L << 62}; }},
      {"a_tensor_in_no_region", [](BindAnswer& a) { a.bound.tensors[0].region = 1; }},
      {"another_tensor", [](BindAnswer& a) { a.bound.tensors[0].tensor = 1; }},
      {"no_tensor", [](BindAnswer& a) { a.bound.tensors.clear(); }},
      {"more_tensors",
       [](BindAnswer& a) {
         a.bound.tensors.push_back({1, 0, 0, {}});
       }},
      {"no_address", [](BindAnswer& a) { a.bound.addresses.clear(); }},
      {"two_addresses", [](BindAnswer& a) { a.bound.addresses.push_back(a.bound.addresses[0]); }},
      {"a_garbled_address", [](BindAnswer& a) { a.bound.addresses[0].back() ^= std::byte{1}; }},
  };
}

/// A record like that of adopted memory, which only the transport can write: it is made for memory that is gone.
Bytes key_of_memory_that_is_gone(transport::Fabric& fabric, std::size_t bytes) {
  void* const range = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (range == MAP_FAILED) throw std::runtime_error("no memory");
  static auto& regions =
      *new std::vector<std::unique_ptr<transport::Region>>;  // kept: a withdrawn key would fail for another reason
  regions.push_back(fabric.adopt({static_cast<std::byte*>(range), bytes, {}}));
  return regions.back()->key();
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_truth_is_believed) {
  const Deadline deadline(120s);
  Job job;
  job.source->answer_with([&](Connection& reader, const wire::Bind& asked) { send(reader, asked, truth(job, asked)); });
  job.restore();
  BOOST_TEST(job.wanted.wrong(1) == 0U);
  BOOST_TEST(job.destination.nothing_beside_is_written());
}

BOOST_DATA_TEST_CASE(a_lie_ends_the_restore_with_a_typed_error, boost::unit_test::data::make(lies()), lie) {
  const Deadline deadline(120s);
  const NothingLeaks check;
  Job job;
  job.source->answer_with([&](Connection& reader, const wire::Bind& asked) {
    BindAnswer answer = truth(job, asked);
    if (asked.fabrics.front().name == "shm") lie.tell(answer);
    send(reader, asked, answer);
  });
  const Error error = failure_of([&] { job.restore(); });
  BOOST_TEST_INFO(error.what());
  BOOST_TEST((error.code() == ErrorCode::transport_failed || error.code() == ErrorCode::peer_lost));
  BOOST_TEST(job.destination.nothing_beside_is_written());
  // The session still works, and so does the source when it answers correctly.
  job.source->answer_with([&](Connection& reader, const wire::Bind& asked) { send(reader, asked, truth(job, asked)); });
  job.restore();
  BOOST_TEST(job.wanted.wrong(1) == 0U);
  BOOST_TEST(job.destination.nothing_beside_is_written());
}

// Superfluous descriptors are closed.
BOOST_AUTO_TEST_CASE(descriptors_that_belong_to_nothing_are_closed) {
  const Deadline deadline(120s);
  Job job;
  std::size_t before = 0;
  job.source->answer_with([&](Connection& reader, const wire::Bind& asked) {
    before = open_descriptors();
    BindAnswer answer = truth(job, asked);
    for (int i = 0; i < 10; ++i) answer.descriptors.push_back(answer.descriptors.front());
    answer.announced = static_cast<std::uint8_t>(answer.announced + 10);
    reader.send(wire::Descriptors{asked.request + 1000, 3}, std::vector<int>(3, 0));  // matches no request
    send(reader, asked, answer);
  });
  job.restore();
  BOOST_TEST(job.wanted.wrong(1) == 0U);
  const auto same = [&] { return open_descriptors() <= before; };
  BOOST_TEST(run_until([] { std::this_thread::sleep_for(10ms); }, same, 10s));
}

BOOST_AUTO_TEST_CASE(a_lie_about_the_step_ends_the_restore_and_commits_nothing) {
  const Deadline deadline(120s);
  Job job;
  job.source->answer_with([&](Connection& reader, const wire::Bind& asked) { send(reader, asked, truth(job, asked)); });
  job.source->answer_leases_with([](Connection& reader, const wire::Lease& asked) {
    reader.send(wire::Leased{asked.request, 1, 4});  // announced is step 0
  });
  const Error error = failure_of([&] { job.restore(); });
  BOOST_TEST((error.code() == ErrorCode::transport_failed));
  BOOST_TEST(says(error, "source rank 0 publishes step 4 of 'state', but has announced step 0"), error.what());
  BOOST_TEST(job.wanted.wrong(1) > 0U);
  BOOST_TEST(job.destination.nothing_beside_is_written());
}

BOOST_AUTO_TEST_CASE(memory_that_is_not_there_ends_the_restore_with_a_typed_error) {
  const Deadline deadline(120s);
  Job job;
  job.source->answer_with([&](Connection& reader, const wire::Bind& asked) {
    BindAnswer answer = truth(job, asked);
    if (asked.fabrics.front().name == "shm") {
      answer.bound.regions[0].keys[0] = {0, key_of_memory_that_is_gone(*job.shm, job.arena->memory().bytes), 0};
      answer.announced = 0;
    }
    send(reader, asked, answer);
  });
  const Error error = failure_of([&] { job.restore_by(RestoreMethod::read); });
  BOOST_TEST((error.code() == ErrorCode::transport_failed), error.what());
  BOOST_TEST(error.gaps().size() == 1U);
  BOOST_TEST(job.destination.nothing_beside_is_written());
}

BOOST_AUTO_TEST_CASE(what_a_fabric_refuses_is_not_withdrawn_until_its_owner_says_so) {
  const Deadline deadline(120s);
  Job job;
  job.refuse_reads(1);
  job.restore_by(RestoreMethod::read);
  BOOST_TEST(job.wanted.wrong(1) == 0U);
  BOOST_TEST(job.destination.nothing_beside_is_written());
}

BOOST_AUTO_TEST_CASE(what_a_fabric_refuses_again_and_again_ends_the_restore) {
  const Deadline deadline(120s);
  Job job;
  job.refuse_reads(1'000);
  const Error error = failure_of([&] { job.restore_by(RestoreMethod::read); });
  BOOST_TEST((error.code() == ErrorCode::transport_failed), error.what());
  BOOST_TEST(job.destination.nothing_beside_is_written());
}

// No fabric of this build carries this kind, and keys of host memory do not change that. Device memory is sent, but not
// read.
BOOST_AUTO_TEST_CASE(memory_of_a_kind_that_no_fabric_carries_is_unsupported) {
  const Deadline deadline(120s);
  constexpr std::uint8_t unknown = 200;
  for (const std::uint8_t kind : {wire::RegionHandle::cuda, unknown}) {
    Job job;
    job.source->answer_with([&](Connection& reader, const wire::Bind& asked) {
      BindAnswer answer = truth(job, asked);
      answer.bound.regions[0].memory_kind = kind;
      answer.bound.regions[0].device = 0;
      send(reader, asked, answer);
    });
    const Error error = failure_of([&] { kind == unknown ? job.restore() : job.restore_by(RestoreMethod::mapped); });
    BOOST_TEST((error.code() == ErrorCode::unsupported), error.what());
    BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{0}}));
    BOOST_TEST(job.destination.nothing_beside_is_written());
  }
}

/// The fault of the second answer, over another fabric.
const std::vector<Lie> second_lies{
    {"more_regions", [](BindAnswer& a) { a.bound.regions.push_back(a.bound.regions.front()); }},
    {"fewer_regions",
     [](BindAnswer& a) {
       a.bound.regions.clear();
       a.bound.tensors[0].region = wire::no_region;
     }},
    {"another_offset", [](BindAnswer& a) { a.bound.tensors[0].offset_bytes = 64; }},
    {"another_region", [](BindAnswer& a) { a.bound.tensors[0].region = wire::no_region; }},
    {"other_strides", [](BindAnswer& a) { a.bound.tensors[0].strides = {1}; }},
    {"another_kind_of_memory", [](BindAnswer& a) { a.bound.regions[0].memory_kind = wire::RegionHandle::cuda; }},
};

BOOST_DATA_TEST_CASE(a_second_answer_that_contradicts_the_first_ends_the_restore,
                     boost::unit_test::data::make(second_lies), lie) {
  const Deadline deadline(120s);
  Job job;
  job.source->answer_with([&](Connection& reader, const wire::Bind& asked) {
    BindAnswer answer = truth(job, asked);
    if (asked.fabrics.front().name == "shm") {  // so that the reader requests another fabric
      answer.bound.regions[0].keys.clear();
      answer.announced = 0;
    } else {
      lie.tell(answer);
    }
    send(reader, asked, answer);
  });
  const Error error = failure_of([&] { job.restore(); });
  BOOST_TEST((error.code() == ErrorCode::transport_failed), error.what());
  BOOST_TEST(std::string(error.what()).find("than before") != std::string::npos, error.what());
  BOOST_TEST(job.source->binds() == 2);
  BOOST_TEST(job.destination.nothing_beside_is_written());
}

BOOST_AUTO_TEST_SUITE_END()
