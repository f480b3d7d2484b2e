// SPDX-License-Identifier: Apache-2.0
// Fake devices made of ordinary memory (support/fake_device.hpp): access other than through the runtime ends the
// process by a signal.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "support/deadline.hpp"
#include "support/fake_device.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(session_device)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr int on_host = memory::on_host;

/// Whether other members, here threads of this process, map device memory. device_ipc_test.cpp tests memory that shm
/// exports.
bool maps_devices() {
  return transport_under_test() == "loopback";
}

TensorSpec spec(const std::string& name, Extents shape = {64, 96}) {
  return {{name, "exp_avg"}, DType::f32, std::move(shape)};
}

/// A rank's shard of a tensor, in host memory or on a device.
class PlacedShard {
 public:
  PlacedShard(UsedDevices& devices, TensorSpec spec, const Layout& layout, int rank, int place)
      : devices_(devices), spec_(std::move(spec)), layout_(layout), place_(place), host_(spec_, layout, Rank{rank}) {
    if (place_ != on_host) address_ = devices_->take(place_, host_.size_bytes());
    put();
  }
  void fill(std::uint64_t seed) {
    host_.fill(seed);
    put();
  }
  [[nodiscard]] std::size_t wrong(std::uint64_t seed) {
    get();
    return host_.wrong(seed);
  }
  [[nodiscard]] bool is(std::byte value) {
    get();
    return std::all_of(host_.data(), host_.data() + host_.size_bytes(), [&](std::byte one) { return one == value; });
  }
  /// Moves the shard to `address` and copies its values there.
  void lie_at(std::byte* address) {
    address_ = address;
    put();
  }
  [[nodiscard]] std::byte* address() { return place_ == on_host ? host_.data() : address_; }
  [[nodiscard]] View view() { return {.data = address(), .device = place_}; }
  [[nodiscard]] ByteCount bytes() const { return host_.size_bytes(); }
  void add_to(Catalog& catalog, void* event = nullptr, Absent absent = Absent::error) {
    View view = this->view();
    view.ready_event = event;
    catalog.add(spec_, layout_, view, absent);
  }

 private:
  void put() {
    if (place_ != on_host) devices_->write(address_, std::span(host_.data(), host_.size_bytes()));
  }
  void get() {
    if (place_ == on_host) return;
    const auto bytes = devices_->read(address_, host_.size_bytes());
    std::copy(bytes.begin(), bytes.end(), host_.data());
  }

  UsedDevices& devices_;
  TensorSpec spec_;
  Layout layout_;
  int place_;
  TestShard host_;
  std::byte* address_ = nullptr;
};

/// A source and a reader, and one rank's shard of one tensor on either side.
struct Pair {
  explicit Pair(const SessionOptions& options = quick())
      : source(Session::join(member(0, 2, port), options)), reader(Session::join(member(1, 2, port), options)) {}

  /// Publishes a tensor of its own.
  PlacedShard& publish(int place, void* event = nullptr) {
    held.emplace(devices, spec("w"), Layout::replicated(), 0, place);
    held->fill(1);
    Catalog catalog(Rank{0}, 1);
    held->add_to(catalog, event);
    publication = source.publish(catalog);
    return *held;
  }
  Catalog want(int place, void* event = nullptr) {
    wanted.emplace(devices, spec("w"), Layout::replicated(), 0, place);
    Catalog catalog(Rank{0}, 1);
    wanted->add_to(catalog, event);
    return catalog;
  }

  UsedDevices devices;
  std::uint16_t port = free_port();
  Session source;
  Session reader;
  std::optional<PlacedShard> held;
  std::optional<PlacedShard> wanted;
  Publication publication;
};

constexpr std::byte untouched{0xee};  // see TestShard

void require_refused(Pair& pair, int target, const RestoreOptions& options) {
  Restore restore = pair.reader.restore(pair.want(target), options);
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::unsupported), error.what());
  BOOST_TEST(says(error, "w:exp_avg"), error.what());
  BOOST_TEST(pair.wanted->is(untouched));
}

/// Fails if a session's thread is blocked.
void require_both_serve(Pair& pair) {
  auto values = std::async(std::launch::async, [&] { return pair.source.gather("here", {}, patience); });
  BOOST_TEST(pair.reader.gather("here", {}, patience).size() == 2U);
  BOOST_TEST(values.get().size() == 2U);
}

const std::vector<int> places{on_host, 0, 1};

}  // namespace

// Two ranks, split along one dim on one side and along the other on the other: half of the bytes are local.
BOOST_AUTO_TEST_CASE(tensors_move_between_any_two_places_in_every_method_that_there_is) {
  const Deadline deadline(120s);
  UsedDevices devices;
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), tight());
    Catalog held(Rank{rank}, 2);
    Catalog wanted(Rank{rank}, 2);
    std::vector<std::unique_ptr<PlacedShard>> sources;
    std::vector<std::unique_ptr<PlacedShard>> targets;
    std::uint64_t seed = 0;
    for (const int from : places) {
      for (const int to : places) {
        const std::string name = std::to_string(from) + "to" + std::to_string(to);
        // The one-element tensor goes by value.
        for (const auto& [shape, suffix] : {std::pair<Extents, const char*>{{64, 96}, ""}, {{1}, "one"}}) {
          const bool one = shape.size() == 1;
          const Layout rows = one ? Layout::replicated() : Layout::chunk(0, 2);
          const Layout columns = one ? Layout::replicated() : Layout::chunk(1, 2);
          sources.push_back(std::make_unique<PlacedShard>(devices, spec(name + suffix, shape), rows, rank, from));
          sources.back()->fill(++seed);
          sources.back()->add_to(held);
          targets.push_back(std::make_unique<PlacedShard>(devices, spec(name + suffix, shape), columns, rank, to));
          targets.back()->add_to(wanted);
        }
      }
    }
    const Publication publication = session.publish(held);
    for (int round = 0; round < 3; ++round) {  // later rounds start from the values of the first
      Restore restore = session.restore(wanted, tight_within(patience));
      restore.wait();
      for (std::size_t i = 0; i < targets.size(); ++i) {
        require(targets[i]->wrong(i + 1) == 0, "tensor " + std::to_string(i) + " has arrived");
      }
      const RestoreReport& report = restore.report();
      require(report.staging_peak_bytes <= report.staging_budget_bytes, "staging stays inside of its budget");
      require(report.methods[Method::local].bytes > 0, "what is here is copied here");
      require(report.methods[Method::packed].bytes > 0, "device memory is packed");
      require((report.methods[Method::mapped].bytes > 0) == maps_devices(), "or mapped");
    }
    const SessionUsage usage = session.usage();
    require(usage.pinned_bytes > 0 && usage.pinned_bytes <= usage.serving_budget_bytes,
            "what is pinned besides is bounded too");
    session.gather("done", {}, patience);
  });
  BOOST_TEST(devices->max_pinned_bytes() > 0U);
  // Per member: the source's slots, the reader's slots, and those of copies through pinned memory.
  BOOST_TEST(devices->max_pinned_bytes() <= 2U * 3U * (64U << 10));
  BOOST_TEST(devices->streams() == 0);
  BOOST_TEST(devices->pinned_bytes() == 0U);
}

BOOST_AUTO_TEST_CASE(a_publication_is_announced_once_its_events_have_happened) {
  const Deadline deadline(120s);
  Pair pair;
  void* const event = pair.devices->make_event();
  PlacedShard held(pair.devices, spec("w"), Layout::replicated(), 0, 0);
  Catalog catalog(Rank{0}, 1);
  held.add_to(catalog, event);
  auto publishing = std::async(std::launch::async, [&] { return pair.source.publish(catalog); });
  Restore restore = pair.reader.restore(pair.want(1), within(patience));
  require_both_serve(pair);
  BOOST_TEST(!restore.poll());
  BOOST_TEST((publishing.wait_for(0s) == std::future_status::timeout));
  held.fill(5);
  pair.devices->fire(event);
  const Publication publication = publishing.get();
  restore.wait();
  BOOST_TEST(pair.wanted->wrong(5) == 0U);
}

BOOST_DATA_TEST_CASE(nothing_is_written_before_the_events_of_the_destination,
                     boost::unit_test::data::make({on_host, 0}), place) {
  const Deadline deadline(120s);
  Pair pair;
  pair.publish(1);
  void* const event = pair.devices->make_event();
  Restore restore = pair.reader.restore(pair.want(place, event), within(patience));
  require_both_serve(pair);
  BOOST_TEST(!restore.poll());
  BOOST_TEST(pair.wanted->is(untouched));
  pair.devices->fire(event);
  restore.wait();
  BOOST_TEST(pair.wanted->wrong(1) == 0U);

  // A waiting restore can be cancelled, and the session can end meanwhile.
  void* const never = pair.devices->make_event();
  Restore waiting = pair.reader.restore(pair.want(place, never), within(patience));
  require_both_serve(pair);
  waiting.cancel();
  BOOST_TEST((failure_of([&] { waiting.wait(); }).code() == ErrorCode::cancelled));
  BOOST_TEST(pair.wanted->is(untouched));
  pair.reader.close(1s);
  pair.devices->fire(never);
}

BOOST_DATA_TEST_CASE(who_waits_for_events_of_its_own_views_blames_no_source, boost::unit_test::data::make({on_host, 0}),
                     place) {
  const Deadline deadline(120s);
  Pair pair;
  pair.publish(1);
  void* const never = pair.devices->make_event();
  const Catalog wanted = pair.want(place, never);
  const Error error = failure_by(
      5s, [&](Duration limit) { pair.reader.restore(wanted, within(limit)).wait(); },
      [](const Error& one) { return says(one, "events of the destination's own views"); });
  BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
  BOOST_TEST(says(error, "events of the destination's own views had not happened"), error.what());
  BOOST_TEST(!says(error, "source rank"), error.what());
  BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{0}}));  // the destination's rank
  pair.reader.close(1s);
  pair.devices->fire(never);
}

BOOST_AUTO_TEST_CASE(an_event_is_not_used_once_the_restore_has_ended) {
  const Deadline deadline(120s);
  Pair pair;
  pair.publish(1);
  void* const event = pair.devices->make_event();
  pair.devices->hold_streams(true);
  Restore restore = pair.reader.restore(pair.want(on_host, event), within(patience));
  require_both_serve(pair);
  restore.cancel();
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::cancelled));
  pair.devices->destroy(event);
  pair.devices->hold_streams(false);
  pair.reader.close(1s);
  BOOST_TEST(pair.devices->wrong_events() == 0);
}

BOOST_AUTO_TEST_CASE(what_is_no_event_is_refused) {
  const Deadline deadline(120s);
  Pair pair;
  int nothing = 0;
  BOOST_TEST((failure_of([&] { pair.publish(0, &nothing); }).code() == ErrorCode::invalid_argument));
  pair.publish(0);
  Restore restore = pair.reader.restore(pair.want(0, &nothing), within(patience));
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::invalid_argument));
}

// The address belongs to another allocation by then.
BOOST_DATA_TEST_CASE(memory_that_was_freed_is_not_read_though_its_address_is_in_use,
                     boost::unit_test::data::make({0, 1}), local) {
  const Deadline deadline(120s);
  Pair pair;
  PlacedShard& held = pair.publish(0);
  const ByteCount bytes = held.bytes();
  const std::byte* const before = held.address();
  pair.devices->give_back(held.address());
  std::byte* const other = pair.devices->take(0, bytes);
  BOOST_REQUIRE(other == before);
  Session& session = local == 1 ? pair.source : pair.reader;
  const Catalog wanted = pair.want(1);
  const Error error = failure_by(
      5s, [&](Duration limit) { session.restore(wanted, within(limit)).wait(); }, with_code(ErrorCode::withdrawn));
  BOOST_TEST((error.code() == ErrorCode::withdrawn), error.what());
  BOOST_TEST(says(error, "w:exp_avg"), error.what());
  BOOST_TEST(pair.wanted->is(untouched));
}

BOOST_AUTO_TEST_CASE(freed_memory_is_noticed_by_a_restore_that_has_read_it_before) {
  const Deadline deadline(120s);
  Pair pair;
  PlacedShard& held = pair.publish(0);
  const Catalog wanted = pair.want(1);
  pair.reader.restore(wanted, within(patience)).wait();
  pair.devices->give_back(held.address());
  const auto again = [&](Duration limit) { pair.reader.restore(wanted, within(limit)).wait(); };
  const auto withdrawn = with_code(ErrorCode::withdrawn);
  BOOST_TEST(withdrawn(failure_by(5s, again, withdrawn)));
}

BOOST_AUTO_TEST_CASE(views_of_memory_that_is_not_there_are_refused_by_name) {
  const Deadline deadline(120s);
  Pair pair;
  PlacedShard held(pair.devices, spec("w"), Layout::replicated(), 0, 1);
  std::vector<std::byte> ordinary(held.bytes());
  const auto code_of = [&](const View& view, const std::string& text) {
    Catalog catalog(Rank{0}, 1);
    catalog.add(spec("w"), Layout::replicated(), view);
    const Error published = failure_of([&] { pair.source.publish(catalog); });
    const Error restored = failure_of([&] { pair.reader.restore(catalog, within(patience)); });
    BOOST_TEST((published.code() == restored.code()));
    for (const Error* error : {&published, &restored}) {
      BOOST_TEST(says(*error, "w:exp_avg"), error->what());
      BOOST_TEST(says(*error, text), error->what());
    }
    return published.code();
  };
  const View right = held.view();
  View wrong = right;
  wrong.device = 0;
  BOOST_TEST((code_of(wrong, "is memory of device 1, and its view says device 0") == ErrorCode::invalid_argument));
  wrong = right;
  wrong.offset = 1;
  BOOST_TEST((code_of(wrong, "ends outside") == ErrorCode::invalid_argument));
  wrong = View{.data = ordinary.data(), .kind = MemoryKind::cuda};
  BOOST_TEST((code_of(wrong, "is declared as device memory") == ErrorCode::invalid_argument));
  wrong = right;
  wrong.kind = MemoryKind::host;
  BOOST_TEST((code_of(wrong, "is not mapped") == ErrorCode::invalid_argument));
  pair.devices->give_back(held.address());
  wrong = right;
  wrong.kind = MemoryKind::cuda;
  BOOST_TEST((code_of(wrong, "it was freed") == ErrorCode::invalid_argument));
  memory::use_device_runtime(nullptr);
  BOOST_TEST((code_of(wrong, "there is no device") == ErrorCode::unsupported));
}

BOOST_AUTO_TEST_CASE(managed_memory_moves_as_memory_of_its_device) {
  const Deadline deadline(120s);
  UsedDevices devices;
  std::vector<std::string> log;
  std::mutex mutex;
  SessionOptions options = quick();
  options.log = [&](LogLevel, std::string_view text) {
    const std::lock_guard lock(mutex);
    log.emplace_back(text);
  };
  Session session = Session::join(member(0, 1, free_port()), options);
  TestShard content(spec("w"), Layout::replicated(), Rank{0});
  content.fill(1);
  std::byte* const managed = devices->take(1, content.size_bytes(), true);
  devices->write(managed, std::span(content.data(), content.size_bytes()));
  Catalog catalog(Rank{0}, 1);
  catalog.add(spec("w"), Layout::replicated(), View{.data = managed});
  const Publication publication = session.publish(catalog);
  PlacedShard target(devices, spec("w"), Layout::replicated(), 0, on_host);
  Catalog wanted(Rank{0}, 1);
  target.add_to(wanted);
  session.restore(wanted, within(patience)).wait();
  BOOST_TEST(target.wrong(1) == 0U);
  const std::lock_guard lock(mutex);
  BOOST_TEST(
      std::ranges::any_of(log, [](const auto& text) { return text.find("managed memory") != std::string::npos; }));
}

BOOST_AUTO_TEST_CASE(an_arena_on_a_device_stays_as_long_as_it_is_published) {
  const Deadline deadline(120s);
  Pair pair;
  PlacedShard held(pair.devices, spec("w"), Layout::replicated(), 0, 1);
  Arena arena = pair.source.allocate(held.bytes(), MemoryKind::cuda, 1);
  std::byte* const at = arena.data();
  BOOST_TEST(pair.devices->find(at, held.bytes()).value().device == 1);
  const auto content = pair.devices->read(at, arena.size_bytes());
  BOOST_TEST(std::ranges::all_of(content, [](std::byte one) { return one == std::byte{}; }));
  BOOST_TEST(arena.discard(0, arena.size_bytes()) == 0U);
  BOOST_TEST(pair.source.usage().registered_bytes == held.bytes());

  held.lie_at(at);
  held.fill(1);
  Catalog catalog(Rank{0}, 1);
  held.add_to(catalog);
  Publication publication = pair.source.publish(catalog);
  arena = Arena();
  pair.reader.restore(pair.want(0), within(patience)).wait();
  BOOST_TEST(pair.wanted->wrong(1) == 0U);
  publication.retire(10s);
  publication = Publication();
  BOOST_TEST(!pair.devices->find(at, 1).has_value());
}

BOOST_AUTO_TEST_CASE(an_arena_on_a_device_outlives_its_session) {
  const Deadline deadline(120s);
  Pair pair;
  Arena arena = pair.source.allocate(1000, MemoryKind::cuda, 0);
  std::byte* const at = arena.data();
  pair.source.close(1s);
  BOOST_TEST(pair.devices->find(at, 1000).has_value());
  arena = Arena();
  BOOST_TEST(!pair.devices->find(at, 1000).has_value());
}

BOOST_AUTO_TEST_CASE(arenas_that_cannot_be_are_typed_errors) {
  const Deadline deadline(120s);
  Pair pair;
  const auto code_of = [&](MemoryKind kind, int device) {
    return failure_of([&] { pair.source.allocate(1000, kind, device); }).code();
  };
  BOOST_TEST(pair.source.allocate(0, MemoryKind::cuda, 1).size_bytes() == 0U);
  BOOST_TEST((pair.source.allocate(1000, MemoryKind::host).bytes()[999] == std::byte{}));
  BOOST_TEST((code_of(MemoryKind::detect, 0) == ErrorCode::invalid_argument));
  for (const int device : {-1, 2}) BOOST_TEST((code_of(MemoryKind::cuda, device) == ErrorCode::invalid_argument));
  pair.devices->refuse_device_memory(true);
  BOOST_TEST((code_of(MemoryKind::cuda, 0) == ErrorCode::out_of_resources));
  pair.devices->refuse_device_memory(false);
  pair.devices->lose(1);
  BOOST_TEST((code_of(MemoryKind::cuda, 1) == ErrorCode::transport_failed));
  BOOST_TEST(pair.source.allocate(1000, MemoryKind::cuda).valid());
  memory::use_device_runtime(nullptr);
  BOOST_TEST((code_of(MemoryKind::cuda, 0) == ErrorCode::unsupported));
}

BOOST_AUTO_TEST_CASE(registered_memory_of_a_device_is_staged_where_no_fabric_knows_it) {
  const Deadline deadline(120s);
  Pair pair;
  PlacedShard held(pair.devices, spec("w"), Layout::replicated(), 0, 0);
  held.fill(1);
  View whole = held.view();
  whole.bytes = static_cast<ElementCount>(held.bytes());
  Registration registration = pair.source.register_memory(whole);
  BOOST_TEST(registration.size_bytes() == held.bytes());
  whole.bytes = 64;
  BOOST_TEST(pair.source.register_memory(whole).size_bytes() == held.bytes());  // returns the existing registration

  Catalog catalog(Rank{0}, 1);
  held.add_to(catalog);
  Publication publication = pair.source.publish(catalog);
  pair.reader.restore(pair.want(1), within(patience)).wait();
  BOOST_TEST(pair.wanted->wrong(1) == 0U);
  for (const PeerPath& path : pair.reader.paths()) {
    BOOST_REQUIRE(path.memory.size() == 2U);
    for (const TransportPath& one : path.memory[1].transports) {
      if (one.map) continue;  // memory can be exported
      BOOST_TEST(one.fallback_detail.starts_with("staged through host memory"), one.fallback_detail);
    }
  }
  registration = Registration();  // the publication keeps it registered
  pair.reader.restore(pair.want(on_host), within(patience)).wait();
  BOOST_TEST(pair.wanted->wrong(1) == 0U);
}

BOOST_AUTO_TEST_CASE(a_registration_of_memory_that_was_freed_is_nobody_elses) {
  const Deadline deadline(120s);
  Pair pair;
  const auto view_of = [](std::byte* address, ByteCount bytes) {
    return View{.data = address, .kind = MemoryKind::cuda, .bytes = static_cast<ElementCount>(bytes)};
  };
  std::byte* const first = pair.devices->take(0, 4096);
  const Registration stale = pair.source.register_memory(view_of(first, 4096));
  const ByteCount registered = pair.source.usage().registered_bytes;
  pair.devices->give_back(first);
  BOOST_REQUIRE(pair.devices->take(0, 4096) == first);
  const Registration fresh = pair.source.register_memory(view_of(first, 1024));
  BOOST_TEST(fresh.size_bytes() == 1024U);
  BOOST_TEST(pair.source.usage().registered_bytes == registered + 1024);
}

BOOST_AUTO_TEST_CASE(registering_what_a_device_has_not_is_refused_with_the_reason) {
  const Deadline deadline(120s);
  Pair pair;
  std::byte* const address = pair.devices->take(1, 4096);
  std::vector<std::byte> ordinary(4096);
  const auto code_of = [&](const View& view, const std::string& text) {
    const Error error = failure_of([&] { pair.source.register_memory(view); });
    BOOST_TEST(says(error, text), error.what());
    return error.code();
  };
  const View right{.data = address, .device = 1, .bytes = 4096};
  View wrong = right;
  wrong.device = 0;
  BOOST_TEST((code_of(wrong, "is memory of device 1, and its view says device 0") == ErrorCode::invalid_argument));
  wrong = right;
  wrong.bytes = 4097;
  BOOST_TEST((code_of(wrong, "ends outside") == ErrorCode::invalid_argument));
  wrong = right;
  wrong.data = ordinary.data();
  BOOST_TEST((code_of(wrong, "is declared as device memory") == ErrorCode::invalid_argument));
  wrong.device = -1;
  BOOST_TEST(pair.source.register_memory(wrong).valid());
  pair.devices->give_back(address);
  BOOST_TEST((code_of(right, "it was freed") == ErrorCode::invalid_argument));
  memory::use_device_runtime(nullptr);
  BOOST_TEST((code_of(right, "there is no device") == ErrorCode::unsupported));
}

// After the event, the caller reads restored values without another query.
BOOST_DATA_TEST_CASE(a_restore_records_events_once_all_is_in_place, boost::unit_test::data::make({on_host, 0, 1}),
                     place) {
  const Deadline deadline(120s);
  Pair pair;
  pair.publish(1);
  const Catalog wanted = pair.want(place);
  std::vector<DoneEvent> events{{pair.devices->make_event(), 0}, {pair.devices->make_event(), 1}};
  RestoreOptions options = within(patience);
  options.done_events = events;
  Restore restore = pair.reader.restore(wanted, options);
  BOOST_TEST(pair.devices->await(events[0].event, patience));
  BOOST_TEST(pair.wanted->wrong(1) == 0U);
  restore.wait();
  BOOST_TEST(pair.devices->await(events[1].event, 0s));

  // With nothing to move, and with nothing wanted.
  for (const bool nothing : {false, true}) {
    options.bind_only = !nothing;
    options.done_events = {{pair.devices->make_event(), 1}};
    Restore last = pair.reader.restore(nothing ? Catalog(Rank{0}, 1) : wanted, options);
    last.wait();
    BOOST_TEST(pair.devices->await(options.done_events[0].event, 0s));
  }
}

BOOST_AUTO_TEST_CASE(a_restore_that_fails_records_no_event) {
  const Deadline deadline(120s);
  Pair pair;
  pair.publish(1);
  void* const never = pair.devices->make_event();
  RestoreOptions options = within(patience);
  options.done_events = {{pair.devices->make_event(), 0}};
  Restore cancelled = pair.reader.restore(pair.want(0, never), options);
  cancelled.cancel();
  BOOST_TEST((failure_of([&] { cancelled.wait(); }).code() == ErrorCode::cancelled));
  pair.devices->fire(never);

  // An operation that cannot record its event by the deadline does not use the event later.
  pair.devices->hold_streams(true);
  options = within(500ms * slowdown());
  options.done_events = {{pair.devices->make_event(), 0}};
  pair.publication.retire(5s);
  pair.publish(on_host);
  Restore late = pair.reader.restore(pair.want(on_host), options);
  BOOST_TEST((failure_of([&] { late.wait(); }).code() == ErrorCode::timed_out));
  pair.devices->destroy(options.done_events[0].event);
  pair.devices->hold_streams(false);

  options = within(patience);
  options.done_events = {{pair.devices->make_event(), 0}};
  Restore good = pair.reader.restore(pair.want(0), options);
  good.wait();
  pair.reader.close(1s);
  BOOST_TEST(pair.devices->wrong_events() == 0);
}

BOOST_AUTO_TEST_CASE(events_that_cannot_be_recorded_are_typed_errors) {
  const Deadline deadline(120s);
  Pair pair;
  pair.publish(on_host);
  const Catalog wanted = pair.want(on_host);
  RestoreOptions options = within(patience);
  int nothing = 0;
  const auto code_of = [&](void* event, int device) {
    options.done_events = {{event, device}};
    return failure_of([&] { pair.reader.restore(wanted, options).wait(); }).code();
  };
  BOOST_TEST((code_of(nullptr, 0) == ErrorCode::invalid_argument));
  for (const int device : {-1, 2})
    BOOST_TEST((code_of(pair.devices->make_event(), device) == ErrorCode::invalid_argument));
  BOOST_TEST((code_of(&nothing, 0) == ErrorCode::invalid_argument));

  // If one of several events fails, the events before it are recorded, all bytes are in place, and other restores
  // continue.
  PlacedShard second(pair.devices, spec("w"), Layout::replicated(), 0, 0);
  Catalog on_device(Rank{0}, 1);
  second.add_to(on_device);
  options.done_events = {{pair.devices->make_event(), 0}, {&nothing, 0}, {pair.devices->make_event(), 1}};
  Restore failing = pair.reader.restore(on_device, options);
  Restore other = pair.reader.restore(wanted, within(patience));
  BOOST_TEST((failure_of([&] { failing.wait(); }).code() == ErrorCode::invalid_argument));
  BOOST_TEST(pair.devices->await(options.done_events[0].event, 0s));
  BOOST_TEST(second.wrong(1) == 0U);
  other.wait();
  pair.devices->lose(1);
  BOOST_TEST((code_of(pair.devices->make_event(), 1) == ErrorCode::transport_failed));
  pair.reader.restore(wanted, within(patience)).wait();
  memory::use_device_runtime(nullptr);
  BOOST_TEST((code_of(&nothing, 0) == ErrorCode::unsupported));
}

// Pinning takes the operating system milliseconds; the session's thread must not wait for it.
BOOST_DATA_TEST_CASE(sessions_go_on_while_memory_is_pinned, boost::unit_test::data::make({on_host, 0}), from) {
  const Deadline deadline(120s);
  Pair pair;
  pair.publish(from);
  const Catalog wanted = pair.want(from == on_host ? 1 : on_host);
  pair.devices->hold_host_memory(true);
  Restore restore = pair.reader.restore(wanted, within(patience));
  require_both_serve(pair);
  BOOST_TEST(!restore.poll());
  pair.devices->hold_host_memory(false);
  restore.wait();
  BOOST_TEST(pair.wanted->wrong(1) == 0U);
}

/// A member that publishes device memory and restores the other's publication.
struct Member {
  Member(UsedDevices& devices, std::uint16_t port, int number, int target, const SessionOptions& options)
      : held(devices, spec(name(number), {512, 512}), Layout::replicated(), 0, 0),
        wanted(devices, spec(name(1 - number), {512, 512}), Layout::replicated(), 0, target),
        session(Session::join(member(number, 2, port), options)) {
    Catalog catalog(Rank{0}, 1);
    held.add_to(catalog);
    publication = session->publish(catalog, {.name = name(number)});
  }
  static std::string name(int number) { return number == 0 ? "first" : "second"; }
  void begin(int other) {
    RestoreOptions options = within(patience);
    options.name = name(other);
    Catalog catalog(Rank{0}, 1);
    wanted.add_to(catalog);
    restore = session->restore(catalog, options);
  }

  PlacedShard held;
  PlacedShard wanted;
  std::optional<Session> session;
  Publication publication;
  Restore restore;
};

// When the session ends, slots are being allocated, packed by a device, waited for or sent, in both directions.
BOOST_AUTO_TEST_CASE(a_session_may_end_at_any_time_while_it_packs) {
  const Deadline deadline(120s);
  SessionOptions options = quick();
  options.staging_bytes = 128 << 10;
  UsedDevices devices;
  constexpr int rounds = 8;
  for (int round = 0; round < rounds; ++round) {
    {
      const auto port = free_port();
      Member first(devices, port, 0, on_host, options);
      Member second(devices, port, 1, round % 4 == 0 ? 1 : on_host, options);
      devices->hold_host_memory(round % 2 == 1);
      const std::uint64_t enough = devices->copies() + static_cast<std::uint64_t>(round);
      first.begin(1);
      second.begin(0);
      while (!second.restore.poll() && devices->copies() < enough && devices->host_memory_wanted() == 0) {
        std::this_thread::yield();
      }
      auto closing = std::async(std::launch::async, [&] { first.session.reset(); });
      std::this_thread::sleep_for(1ms);
      devices->hold_host_memory(false);
      closing.get();
      for (Restore* restore : {&first.restore, &second.restore}) {
        try {
          restore->wait();
        } catch (const Error& error) {
          const bool expected = error.code() == ErrorCode::peer_lost || error.code() == ErrorCode::cancelled ||
                                error.code() == ErrorCode::withdrawn;
          BOOST_TEST(expected, error.what());
        }
      }
    }
    BOOST_TEST(devices->pinned_bytes() == 0U);
    BOOST_TEST(devices->streams() == 0);
    BOOST_TEST(devices->under_way() == 0);
  }
}

BOOST_DATA_TEST_CASE(memory_that_cannot_be_pinned_ends_the_restore_and_no_other,
                     boost::unit_test::data::make({on_host, 0}) * boost::unit_test::data::make({false, true}), from,
                     local) {
  const Deadline deadline(120s);
  Pair pair;
  pair.publish(from);
  Session& session = local ? pair.source : pair.reader;
  if (from == 0 && (local || maps_devices())) pair.devices->refuse_peers(true);  // else no peer access is needed
  pair.devices->refuse_host_memory(true);
  Restore restore = session.restore(pair.want(1), within(patience));
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::out_of_resources));
  pair.devices->refuse_host_memory(false);
  session.restore(pair.want(1), within(patience)).wait();
  BOOST_TEST(pair.wanted->wrong(1) == 0U);
}

// Lost before the restore begins, and during a copy that uses it.
BOOST_DATA_TEST_CASE(a_device_that_is_lost_ends_what_needs_it_and_nothing_else,
                     boost::unit_test::data::make({0, 1}) * boost::unit_test::data::make({false, true}) *
                         boost::unit_test::data::make({false, true}),
                     lost, halfway, local) {
  const Deadline deadline(120s);
  Pair pair;
  pair.publish(0);
  const Catalog wanted = pair.want(1);
  const bool packed = !local && !maps_devices();
  if (halfway) {
    pair.devices->lose_at_copy(lost, packed && lost == 1 ? 2 : 1);
  } else {
    pair.devices->lose(lost);  // the source's, or the target's
  }
  Restore restore = (local ? pair.source : pair.reader).restore(wanted, within(patience));
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::transport_failed), error.what());
  BOOST_TEST(says(error, "has failed for good"), error.what());
  BOOST_TEST(!error.gaps().empty());
  pair.publication.retire(5s);
  pair.publish(on_host);
  pair.reader.restore(pair.want(on_host), within(patience)).wait();
  BOOST_TEST(pair.wanted->wrong(1) == 0U);
}

BOOST_AUTO_TEST_CASE(host_memory_goes_on_where_the_driver_answers_nothing_any_more) {
  const Deadline deadline(120s);
  Pair pair;
  pair.devices->fail_queries(true);
  pair.publish(on_host);
  pair.reader.restore(pair.want(on_host), within(patience)).wait();
  BOOST_TEST(pair.wanted->wrong(1) == 0U);
  const Catalog wanted = pair.want(1);
  const Error error = failure_of([&] { pair.reader.restore(wanted, within(patience)); });
  BOOST_TEST((error.code() == ErrorCode::transport_failed), error.what());
  BOOST_TEST(says(error, "w:exp_avg"), error.what());
}

BOOST_AUTO_TEST_CASE(what_is_said_to_be_a_devices_is_not_taken_for_the_hosts) {
  const Deadline deadline(120s);
  Pair pair;
  std::vector<float> memory(64 * 96);
  Catalog catalog(Rank{0}, 1);
  catalog.add(spec("w"), Layout::replicated(), View{.data = memory.data(), .device = 1});
  const Error error = failure_of([&] { pair.source.publish(catalog); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument), error.what());
}

BOOST_AUTO_TEST_CASE(a_snapshot_of_device_memory_lies_in_the_host) {
  const Deadline deadline(120s);
  Pair pair;
  PlacedShard held(pair.devices, spec("w"), Layout::replicated(), 0, 0);
  held.fill(1);
  Catalog catalog(Rank{0}, 1);
  held.add_to(catalog);
  Publication publication = pair.source.publish(catalog, {.snapshot = Snapshot::copy});
  held.fill(2);
  const Catalog wanted = pair.want(1);
  pair.reader.restore(wanted, within(patience)).wait();
  BOOST_TEST(pair.wanted->wrong(1) == 0U);
  publication.update(catalog, 1, Snapshot::copy, 5s);
  pair.reader.restore(wanted, within(patience)).wait();
  BOOST_TEST(pair.wanted->wrong(2) == 0U);
}

BOOST_AUTO_TEST_CASE(what_no_source_has_becomes_zeros_on_a_device_too) {
  const Deadline deadline(120s);
  Pair pair;
  pair.publish(0);
  Catalog wanted = pair.want(1);
  PlacedShard absent(pair.devices, spec("v"), Layout::replicated(), 0, 1);
  absent.add_to(wanted, nullptr, Absent::zero);
  pair.reader.restore(wanted, within(patience)).wait();
  BOOST_TEST(pair.wanted->wrong(1) == 0U);
  BOOST_TEST(absent.is(std::byte{0}));
}

// One replica is read and the other compared, over there or in this process, each on a device or on the host.
BOOST_AUTO_TEST_CASE(replicas_are_compared_wherever_they_lie) {
  const Deadline deadline(120s);
  for (const auto& [first_place, second_place] : {std::pair(0, on_host), std::pair(on_host, 1), std::pair(0, 1)}) {
    for (const bool differ : {false, true}) {
      Pair pair;
      PlacedShard first(pair.devices, spec("w"), Layout::replicated(), 0, first_place);
      PlacedShard second(pair.devices, spec("w"), Layout::replicated(), 1, second_place);
      first.fill(1);
      second.fill(differ ? 2 : 1);
      Catalog of_source(Rank{0}, 2), of_reader(Rank{1}, 2);
      first.add_to(of_source);
      second.add_to(of_reader);
      const Publication read = pair.source.publish(of_source), compared = pair.reader.publish(of_reader);
      RestoreOptions options = within(patience);
      options.replicas = Replicas::compare;
      options.discovery_grace = patience;  // both publish
      for (Session* session : {&pair.source, &pair.reader}) {
        for (const int target : {on_host, 1}) {
          Restore restore = session->restore(pair.want(target), options);
          if (!differ) {
            restore.wait();
            BOOST_TEST(pair.wanted->wrong(1) == 0U);
            continue;
          }
          const Error error = failure_of([&] { restore.wait(); });
          BOOST_TEST((error.code() == ErrorCode::layout_mismatch), error.what());
          BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{1}}));
        }
      }
    }
  }
}

// Rows become columns of the same memory, so every tensor waits until its destination is free.
BOOST_AUTO_TEST_CASE(an_exchange_of_device_memory_in_place) {
  const Deadline deadline(120s);
  UsedDevices devices;
  const auto port = free_port();
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), quick());
    PlacedShard held(devices, spec("w"), Layout::chunk(0, 2), rank, rank);
    PlacedShard one(devices, spec("one", {1}), Layout::replicated(), rank, rank);
    held.fill(1);
    one.fill(2);
    Catalog before(Rank{rank}, 2);
    held.add_to(before);
    one.add_to(before);
    Catalog after(Rank{rank}, 2);
    after.add(spec("w"), Layout::chunk(1, 2), held.view());
    one.add_to(after);
    ExchangeOptions options;
    options.timeout = 30s;
    session.exchange(before, after, options);
    TestShard expected(spec("w"), Layout::chunk(1, 2), Rank{rank});
    const auto bytes = devices->read(held.address(), held.bytes());
    std::copy(bytes.begin(), bytes.end(), expected.data());
    require(expected.wrong(1) == 0, "the columns are there");
    require(one.wrong(2) == 0, "the element is there");
  });
}

BOOST_DATA_TEST_CASE(digests_compare_what_lies_on_devices,
                     boost::unit_test::data::make(places) * boost::unit_test::data::make(places), from, to) {
  const Deadline deadline(120s);
  Pair pair;
  pair.publish(from);
  RestoreOptions options = within(patience);
  options.verify = Verify::digest;
  const Catalog wanted = pair.want(to);
  Restore restore = pair.reader.restore(wanted, options);
  restore.wait();
  BOOST_TEST(pair.wanted->wrong(1) == 0U);
  BOOST_TEST(restore.report().digest_seconds > 0);

  // The device computes the digests, and the restore compares them.
  if (from == on_host && to == on_host) return;
  pair.devices->spoil_digests(true);
  Restore spoiled = pair.reader.restore(wanted, options);
  const Error error = failure_of([&] { spoiled.wait(); });
  BOOST_TEST((error.code() == ErrorCode::transport_failed), error.what());
  BOOST_TEST(says(error, "differ"), error.what());
}

BOOST_AUTO_TEST_CASE(the_path_says_that_it_is_staged_and_why) {
  const Deadline deadline(120s);
  Pair pair;
  pair.publish(0);
  Restore restore = pair.reader.restore(pair.want(1), within(patience));
  restore.wait();
  BOOST_REQUIRE(restore.report().peers.size() == 1U);
  const PeerReport& peer = restore.report().peers.front();
  BOOST_TEST(peer.path.find(maps_devices() ? "/mapped" : "/packed") != std::string::npos, peer.path);
  // Message slots are pinned, so no copy goes through other pinned memory.
  BOOST_TEST(pair.reader.usage().pinned_bytes == 0U);
  BOOST_TEST(pair.source.usage().pinned_bytes == 0U);
  if (!maps_devices()) {
    BOOST_TEST(peer.fallback_detail.find("device memory is staged through host memory: ") != std::string::npos,
               peer.fallback_detail);
    BOOST_TEST(peer.fallback_detail.find("knows host memory only") != std::string::npos, peer.fallback_detail);
  }
  const auto paths = pair.reader.paths("state", 10s);
  BOOST_REQUIRE(paths.size() == 1U);
  BOOST_REQUIRE(paths.front().memory.size() == 2U);
  const MemoryPaths& cuda = paths.front().memory.back();
  BOOST_TEST((cuda.memory == MemoryKind::cuda));
  BOOST_REQUIRE(!cuda.transports.empty());
  for (const TransportPath& one : cuda.transports) {
    if (one.map) {  // it would map memory that can be exported
      BOOST_TEST(one.fallback_detail.empty(), one.fallback_detail);
      continue;
    }
    BOOST_TEST(one.message);
    BOOST_TEST((!one.read && !one.gpu_direct));
    BOOST_TEST(one.fallback_detail.find("staged through host memory: ") == 0U, one.fallback_detail);
  }
}

BOOST_DATA_TEST_CASE(what_another_device_cannot_access_is_staged_and_says_why,
                     boost::unit_test::data::make({false, true}) * boost::unit_test::data::make({false, true}), local,
                     closed) {
  const Deadline deadline(120s);
  Pair pair;
  pair.devices->refuse_peers(!closed);
  pair.devices->close_to_peers(closed);  // like expandable segments
  pair.publish(0);
  Session& session = local ? pair.source : pair.reader;
  const Catalog wanted = pair.want(1);
  const std::string why = "device 1 cannot access memory of device 0";
  for (int round = 0; round < 2; ++round) {
    Restore restore = session.restore(wanted, within(patience));
    restore.wait();
    BOOST_TEST(pair.wanted->wrong(1) == 0U);
    BOOST_REQUIRE(restore.report().peers.size() == 1U);
    const PeerReport& peer = restore.report().peers.front();
    BOOST_TEST(peer.path.find(local ? "local" : "/packed") != std::string::npos, peer.path);
    BOOST_TEST(peer.fallback_detail.find("device memory is staged through host memory: ") != std::string::npos,
               peer.fallback_detail);
    if (local || maps_devices()) BOOST_TEST(peer.fallback_detail.find(why) != std::string::npos, peer.fallback_detail);
  }
  BOOST_TEST((pair.source.usage().pinned_bytes > 0) == local);
  const auto paths = session.paths("state", 10s);
  BOOST_REQUIRE(paths.size() == 1U);
  for (const TransportPath& one : paths.front().memory.back().transports) {
    if (one.map && !closed) BOOST_TEST(one.fallback_detail.find(why) != std::string::npos, one.fallback_detail);
  }
  session.restore(pair.want(0), within(patience)).wait();
  BOOST_TEST(pair.wanted->wrong(1) == 0U);
}

BOOST_AUTO_TEST_CASE(predicted_seconds_are_those_of_the_devices) {
  const Deadline deadline(120s);
  SessionOptions measured = quick();
  measured.costs.emplace();
  measured.costs->set("local", MemoryKind::cuda, Method::local, {.bytes_per_second = 1e6});
  for (const bool calibrated : {false, true}) {
    Pair pair(calibrated ? measured : quick());
    pair.devices->set_peak(2e9);
    const auto bytes = static_cast<double>(pair.publish(0).bytes());
    const auto seconds = [&](Session& session, int place) {
      RestoreOptions options = within(patience);
      options.bind_only = true;
      Restore restore = session.restore(pair.want(place), options);
      restore.wait();
      return restore.report().peers.at(0).predicted_seconds;
    };
    const auto near = boost::test_tools::tolerance(1e-6);
    constexpr double launch_and_run = 20e-6 + 1e-9;
    BOOST_TEST(seconds(pair.source, 0) == (calibrated ? bytes / 1e6 : launch_and_run + bytes / 1e9), near);
    BOOST_TEST(seconds(pair.source, 1) == (calibrated ? bytes / 1e6 : launch_and_run + bytes / 20e9), near);
    // On another device, the cost also differs from that of host memory.
    if (!maps_devices()) {
      const MethodCost host = CostModel().at("tcp", MemoryKind::host, Method::packed);
      BOOST_TEST(seconds(pair.reader, 1) == 20e-6 + host.seconds(pair.held->bytes(), 1), near);
    }
  }
}

// Gaps between the wanted columns are as wide as the columns.
BOOST_DATA_TEST_CASE(host_memory_goes_to_a_device_in_each_method_that_the_fabric_has,
                     boost::unit_test::data::make({"mapped", "read", "sieved_read", "zcopy", "packed"}) *
                         boost::unit_test::data::make({false, true}),
                     name, digested) {
  const Deadline deadline(120s);
  Pair pair;
  TestShard held(spec("w"), Layout::replicated(), Rank{0});
  const Arena arena = pair.source.allocate(held.size_bytes());
  held.use(arena.data());
  held.fill(1);
  Catalog catalog(Rank{0}, 1);
  held.add_to(catalog);
  const Publication publication = pair.source.publish(catalog);
  PlacedShard wanted(pair.devices, spec("w"), Layout::chunk(1, 2), 1, 1);
  Catalog columns(Rank{1}, 2);
  wanted.add_to(columns);
  const Method method = method_from(name).value();
  const bool possible = method == Method::packed || (method == Method::mapped && maps_arenas()) ||
                        (method == Method::sieved_read && reads_arenas());
  RestoreOptions options = tight_within(patience);
  options.method = to_restore_method(method);
  options.verify = digested ? Verify::digest : Verify::generation;
  for (int round = 0; round < 2; ++round) {
    Restore restore = pair.reader.restore(columns, options);
    if (!possible) {
      BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::unsupported));
      BOOST_TEST(wanted.is(untouched));
      continue;
    }
    restore.wait();
    BOOST_TEST(wanted.wrong(1) == 0U);
    BOOST_TEST(restore.report().methods[method].bytes >= wanted.bytes());
    BOOST_TEST((restore.report().overread_bytes > 0) == (method == Method::sieved_read));
    BOOST_TEST(restore.report().staging_peak_bytes <= restore.report().staging_budget_bytes);
  }
  BOOST_TEST((pair.devices->max_pinned_bytes() > 0) == possible);
}

BOOST_DATA_TEST_CASE(what_device_memory_cannot_do_is_refused_by_name, boost::unit_test::data::make({on_host, 0}),
                     from) {
  const Deadline deadline(120s);
  Pair pair;
  pair.publish(from);
  const int target = from == on_host ? 1 : on_host;
  for (const auto method : {RestoreMethod::zcopy, RestoreMethod::read, RestoreMethod::mapped}) {
    if (method == RestoreMethod::mapped && from != on_host && maps_devices()) continue;
    RestoreOptions forced = within(patience);
    forced.method = method;
    require_refused(pair, target, forced);
  }
}

BOOST_AUTO_TEST_SUITE_END()
