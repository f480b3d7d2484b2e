// SPDX-License-Identifier: Apache-2.0
// Sources that send bytes other than the requested ones: a restore ends with a typed error and writes nothing outside
// the destination.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <optional>

#include "memory/digest.hpp"
#include "paths/fabric_driver.hpp"
#include "session/false_source.hpp"
#include "support/deadline.hpp"
#include "support/job.hpp"
#include "support/launch_variables.hpp"
#include "wire/payload_header.hpp"

BOOST_AUTO_TEST_SUITE(false_payload)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t elements = 300'000;  // several requests

TensorSpec spec() {
  return {{"w", "exp_avg"}, DType::f32, {static_cast<Extent>(elements)}};
}

/// The source's next payload for one request.
struct Payload {
  wire::PayloadHeader header;
  std::vector<transport::ConstMemory> ranges;
  int times = 1;
  bool cut = false;  ///< aborts the connection in the middle of the message
};

/// A fault of the payload, and its expected consequences.
struct Lie {
  const char* what;
  std::function<void(Payload&)> tell;
  std::vector<ErrorCode> expected;
  friend std::ostream& operator<<(std::ostream& out, const Lie& lie) { return out << lie.what; }
};

struct Job {
  std::uint16_t port = free_port();
  Session reader = Session::join(member(0, 2, port), quick());
  TestShard held{spec(), Layout::replicated(), Rank{0}};
  GuardedBytes destination{held.size_bytes()};
  TestShard wanted{spec(), Layout::replicated(), Rank{0}};
  std::unique_ptr<FalseSource> source;
  // Used on the source's loop.
  std::unique_ptr<transport::Fabric> tcp;
  std::unique_ptr<FabricDriver> driver;
  std::uint64_t token = 0;  // of the endpoint's sockets
  std::unique_ptr<transport::Endpoint> endpoint;
  std::function<void(Payload&)> tell;
  std::function<void(std::vector<Digest128>&)> tell_digests;
  std::function<void(Connection&)> instead_of_digests;
  std::atomic<bool> on_device = false;    // as the source reports
  std::atomic<bool> all_gathered = true;  // checked later on the test's thread, since only that thread may check
  std::atomic<int> packed = 0;            // requests for neither gathered bytes nor one message per part
  std::optional<RestoreMethod> method{};  // of restores

  Job() {
    held.fill(1);
    wanted.use(destination.data());
    Catalog catalog(Rank{0}, 1);
    held.add_to(catalog);
    source = std::make_unique<FalseSource>(port, catalog);
    source->loop().call([&] {
      tcp = transport::choose("tcp").open();
      tcp->on_message([](transport::Incoming& incoming) { incoming.discard(); });
      driver = std::make_unique<FabricDriver>(source->loop(), std::vector{tcp.get()}, 0ns, [](const Error&) {});
    });
    source->answer_with([this](Connection& from, const wire::Bind& asked) { bind(from, asked); });
    source->answer_requests_with([this](Connection&, const wire::PackRequest& asked) { send(asked); },
                                 [this](Connection& from, const wire::DigestRequest& asked) { digest(from, asked); });
  }
  ~Job() {
    source->loop().call([&] {
      endpoint.reset();
      driver.reset();
      tcp.reset();
    });
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  void bind(Connection& from, const wire::Bind& asked) {
    const wire::FabricHandle& wanted_fabric = asked.fabrics.front();
    if (wanted_fabric.sockets != token) {
      token = wanted_fabric.sockets;
      endpoint =
          tcp->connect({.address = wanted_fabric.address, .same_host = true, .sockets = source->take_sockets(token)});
    }
    wire::Bound bound;
    bound.request = asked.request;
    bound.max_pack_bytes = 1 << 20;
    bound.addresses = {tcp->address()};
    bound.regions = {{held.size_bytes(),
                      {},
                      on_device ? wire::RegionHandle::cuda : wire::RegionHandle::host,
                      static_cast<std::int16_t>(on_device ? 0 : -1)}};
    bound.tensors = {{0, on_device ? wire::no_region : 0, 0, {}}};
    from.send(bound);
  }
  Digest128 digest_of(const Box& box) {
    const PlacedBox whole{Box{{0}, {static_cast<Extent>(elements)}}, 0, {1}};
    return memory::digest_box(box, whole, held.data(), sizeof(float));
  }
  void send(const wire::PackRequest& asked) {
    if (!asked.gathered) all_gathered = false;
    if (!asked.gathered && !asked.each) ++packed;
    Payload payload{.header = {.request = asked.request}, .ranges = {}};
    std::vector<Digest128> digests;
    for (const wire::RequestedBox& part : asked.parts) {
      const auto bytes = static_cast<ByteCount>(part.box.volume()) * sizeof(float);
      payload.ranges.push_back({held.data() + static_cast<ByteCount>(part.box.offset[0]) * sizeof(float), bytes, {}});
      if (asked.digest) digests.push_back(digest_of(part.box));
    }
    if (asked.digest) payload.header.digest = memory::digest_of(digests);
    if (tell) tell(payload);
    for (int i = 0; i < payload.times && endpoint; ++i) {
      endpoint->send(wire::EncodedHeader(payload.header).bytes(), payload.ranges, [](const transport::Outcome&) {});
    }
    if (!payload.cut || !endpoint) return;
    endpoint->abort();
    endpoint.reset();
  }
  void digest(Connection& from, const wire::DigestRequest& asked) {
    if (instead_of_digests) return instead_of_digests(from);
    wire::Digests answer{asked.request, {}};
    for (const wire::RequestedBox& part : asked.parts) answer.digests.push_back(digest_of(part.box));
    if (tell_digests) tell_digests(answer.digests);
    from.send(answer);
  }

  void lie(std::function<void(Payload&)> about) {
    source->loop().call([&] { tell = std::move(about); });
  }
  void lie_of_digests(std::function<void(std::vector<Digest128>&)> about) {
    source->loop().call([&] { tell_digests = std::move(about); });
  }
  void do_instead_of_digests(std::function<void(Connection&)> act) {
    source->loop().call([&] { instead_of_digests = std::move(act); });
  }
  void restore(Verify verify, Duration timeout) {
    Catalog catalog(Rank{0}, 1);
    wanted.add_to(catalog);
    RestoreOptions options = within(timeout);
    options.verify = verify;
    options.method = method;
    reader.restore(catalog, options).wait();
  }
  /// The session still works, and so does a source that sends correct payloads again.
  void check_truth_is_believed(Verify verify) {
    lie({});
    lie_of_digests({});
    do_instead_of_digests({});
    restore(verify, 20s);
    BOOST_TEST(all_gathered);
    BOOST_TEST(wanted.wrong(1) == 0U);
    BOOST_TEST(destination.nothing_beside_is_written());
  }
};

const std::byte elsewhere[4096] = {};
const std::vector<ErrorCode> nonsense{ErrorCode::transport_failed};
const std::vector<ErrorCode> silence{ErrorCode::timed_out};

const std::vector<Lie> lies{
    {"half_of_the_bytes", [](Payload& p) { p.ranges.front().bytes /= 2; }, nonsense},
    {"one_byte_too_few", [](Payload& p) { --p.ranges.back().bytes; }, nonsense},
    {"one_byte_too_many",
     [](Payload& p) {
       p.ranges.push_back({elsewhere, 1, {}});
     },
     nonsense},
    {"many_too_many",
     [](Payload& p) {
       p.ranges.insert(p.ranges.end(), 100, {elsewhere, sizeof elsewhere, {}});
     },
     nonsense},
    {"no_bytes", [](Payload& p) { p.ranges.clear(); }, nonsense},
    {"an_answer_to_another_request", [](Payload& p) { p.header.request += 1000; }, silence},
    {"an_answer_to_no_request", [](Payload& p) { p.header.request = 0; }, silence},
    {"no_answer", [](Payload& p) { p.times = 0; }, silence},
    {"the_end_of_the_connection", [](Payload& p) { p.cut = true; }, {ErrorCode::transport_failed}},
};

const std::vector<Lie> digested_lies{
    {"other_bytes", [](Payload& p) { p.ranges.front().address += 4; }, nonsense},
    {"other_bytes_of_the_same_sum",
     [](Payload& p) {
       const transport::ConstMemory whole = p.ranges.front();  // its halves are swapped
       p.ranges.front() = {whole.address + whole.bytes / 2, whole.bytes - whole.bytes / 2, {}};
       p.ranges.insert(p.ranges.begin() + 1, {whole.address, whole.bytes / 2, {}});
     },
     nonsense},
    {"another_digest", [](Payload& p) { p.header.digest->low ^= 1; }, nonsense},
    {"no_digest", [](Payload& p) { p.header.digest.reset(); }, nonsense},
    {"half_of_the_bytes", [](Payload& p) { p.ranges.front().bytes /= 2; }, nonsense},
};

void check_lie(const Lie& lie, Verify verify, bool on_device = false) {
  const Deadline deadline(120s);
  Job job;
  job.on_device = on_device;
  job.lie(lie.tell);
  const bool silent = lie.expected == silence;
  const Error error = failure_by(
      silent ? 2s : 30s, [&](Duration limit) { job.restore(verify, limit); },
      [](const Error& one) { return !one.gaps().empty(); });  // of a plan
  BOOST_TEST((std::ranges::find(lie.expected, error.code()) != lie.expected.end()), error.what());
  BOOST_TEST(error.gaps().size() == 1U);
  BOOST_TEST(job.destination.nothing_beside_is_written());
  if (!on_device) job.check_truth_is_believed(verify);
}

}  // namespace

BOOST_DATA_TEST_CASE(the_truth_is_believed, boost::unit_test::data::make({0, 1}), digests) {
  const Deadline deadline(120s);
  Job job;
  job.check_truth_is_believed(digests == 1 ? Verify::digest : Verify::generation);
}

BOOST_AUTO_TEST_CASE(device_memory_is_digested_too) {
  const Deadline deadline(120s);
  Job job;
  job.on_device = true;
  job.restore(Verify::digest, 20s);
  BOOST_TEST(job.wanted.wrong(1) == 0U);
}

BOOST_DATA_TEST_CASE(other_bytes_than_asked_for_end_the_restore, boost::unit_test::data::make(lies), lie) {
  check_lie(lie, Verify::generation);
}

BOOST_DATA_TEST_CASE(other_bytes_than_digested_end_the_restore, boost::unit_test::data::make(digested_lies), lie) {
  check_lie(lie, Verify::digest);
}

BOOST_DATA_TEST_CASE(bytes_of_a_device_that_are_not_those_digested_end_the_restore,
                     boost::unit_test::data::make(digested_lies), lie) {
  check_lie(lie, Verify::digest, true);
}

// The bytes, and digests of them after the move, are correct: only the digest that came with them shows the lie.
BOOST_AUTO_TEST_CASE(packed_bytes_with_another_digest_end_the_restore) {
  const Deadline deadline(120s);
  Job job;
  job.method = RestoreMethod::packed;
  job.lie([](Payload& p) { p.header.digest->low ^= 1; });
  const Error error = failure_of([&] { job.restore(Verify::digest, 30s); });
  BOOST_TEST((error.code() == ErrorCode::transport_failed), error.what());
  BOOST_TEST(says(error, "differ from their source"), error.what());
  BOOST_TEST(error.gaps().size() == 1U);
  BOOST_TEST(job.packed > 0);
  BOOST_TEST(!job.all_gathered);
  job.lie({});
  job.restore(Verify::digest, 20s);
  BOOST_TEST(job.wanted.wrong(1) == 0U);
  BOOST_TEST(job.destination.nothing_beside_is_written());
}

// The second answer matches no request.
BOOST_AUTO_TEST_CASE(an_answer_that_comes_twice_counts_once) {
  const Deadline deadline(120s);
  Job job;
  job.lie([](Payload& payload) { payload.times = 2; });
  job.restore(Verify::generation, 20s);
  BOOST_TEST(job.wanted.wrong(1) == 0U);
  BOOST_TEST(job.destination.nothing_beside_is_written());
  job.check_truth_is_believed(Verify::generation);
}

BOOST_AUTO_TEST_CASE(digests_after_the_move_that_are_wrong_or_too_few_or_too_many_end_the_restore) {
  using Digests = std::vector<Digest128>;
  const std::vector<std::function<void(Digests&)>> about{
      [](Digests& digests) { digests.back().high ^= 1; },
      [](Digests& digests) { digests.pop_back(); },
      [](Digests& digests) { digests.push_back(digests.back()); },
      [](Digests& digests) { digests.clear(); },
  };
  const Deadline deadline(120s);
  for (const auto& tell : about) {
    Job job;
    job.lie_of_digests(tell);
    const Error error = failure_of([&] { job.restore(Verify::digest, 30s); });
    BOOST_TEST((error.code() == ErrorCode::transport_failed), error.what());
    job.check_truth_is_believed(Verify::digest);
  }
}

BOOST_AUTO_TEST_CASE(a_source_that_goes_away_or_is_silent_when_its_digests_are_asked_ends_the_restore) {
  const Deadline deadline(120s);
  {
    Job job;
    job.do_instead_of_digests([](Connection& reader) { reader.drop(); });
    const Error error = failure_of([&] { job.restore(Verify::digest, 30s); });
    BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
    job.check_truth_is_believed(Verify::digest);
  }
  {
    Job job;
    job.do_instead_of_digests([](Connection&) {});
    const Error error = failure_of([&] { job.restore(Verify::digest, 2s); });
    BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
    job.check_truth_is_believed(Verify::digest);
  }
}

BOOST_AUTO_TEST_SUITE_END()
