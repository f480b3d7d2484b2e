// SPDX-License-Identifier: Apache-2.0
// Registered memory of the caller: peers read it in place, and the registration ends with the handle.
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(registration)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

TensorSpec spec() {
  return {{"w", "exp_avg"}, DType::f32, {100'000}};
}

/// A source with ordinary memory and a reader, on the caller's thread.
struct Pair {
  std::uint16_t port = free_port();
  Session source = Session::join(member(0, 2, port), quick());
  Session reader = Session::join(member(1, 2, port), quick());
  TestShard held{spec(), Layout::replicated(), Rank{0}};
  TestShard wanted{spec(), Layout::replicated(), Rank{0}};

  Pair() { held.fill(1); }
  Publication publish() {
    Catalog catalog(Rank{0}, 1);
    held.add_to(catalog);
    return source.publish(catalog);
  }
  RestoreReport restore() {
    Catalog target(Rank{0}, 1);
    wanted.add_to(target);
    Restore restore = reader.restore(target, within(patience));
    restore.wait();
    return restore.report();
  }
  /// Publishes and restores; returns whether all bytes were read without messages.
  bool is_read_in_place() {
    Publication publication = publish();
    const RestoreReport report = restore();
    publication.retire(10s);
    // More than once, if the roster still named the publication before this one.
    return wanted.wrong(1) == 0 &&
           report.methods[Method::read].bytes + report.methods[Method::mapped].bytes >= report.needed_bytes &&
           report.methods[Method::zcopy].bytes + report.methods[Method::packed].bytes == 0;
  }
};

bool reads_in_place() {
  return reads_ordinary_memory() || reads_arenas();
}

}  // namespace

BOOST_AUTO_TEST_CASE(registered_memory_is_read_in_place_where_a_fabric_can) {
  Pair pair;
  const Registration registration =
      pair.source.register_memory(view(std::span(pair.held.data(), pair.held.size_bytes())));
  BOOST_TEST(registration.valid());
  BOOST_TEST(registration.size_bytes() == pair.held.size_bytes());
  Publication publication = pair.publish();
  const RestoreReport report = pair.restore();
  BOOST_TEST(pair.wanted.wrong(1) == 0U);
  const ByteCount in_place = report.methods[Method::read].bytes + report.methods[Method::mapped].bytes;
  BOOST_TEST(in_place == (reads_ordinary_memory() || reads_arenas() ? report.needed_bytes : 0));
  BOOST_TEST(pair.source.usage().registered_bytes >= pair.held.size_bytes());
  publication.retire(10s);
}

BOOST_AUTO_TEST_CASE(memory_is_registered_once_and_withdrawn_with_its_last_handle) {
  Pair pair;
  const View whole = view(std::span(pair.held.data(), pair.held.size_bytes()));
  Registration first = pair.source.register_memory(whole);
  const ByteCount registered = pair.source.usage().registered_bytes;
  Registration second = pair.source.register_memory(view(std::span(pair.held.data() + 64, 4096)));
  BOOST_TEST(second.size_bytes() == pair.held.size_bytes());
  BOOST_TEST(pair.source.usage().registered_bytes == registered);
  first = Registration();
  Registration third = pair.source.register_memory(whole);  // the second registration keeps it
  BOOST_TEST(pair.source.usage().registered_bytes == registered);
  second = Registration();
  third = Registration();
  Registration fourth = pair.source.register_memory(whole);
  BOOST_TEST(pair.source.usage().registered_bytes == 2 * registered);
}

// In either order, and also after the smaller registration ends.
BOOST_DATA_TEST_CASE(a_registration_inside_of_another_does_not_hide_it, boost::unit_test::data::make({false, true}),
                     same_start) {
  Pair pair;
  const View whole = view(std::span(pair.held.data(), pair.held.size_bytes()));
  Registration part = pair.source.register_memory(view(std::span(pair.held.data() + (same_start ? 0 : 4096), 4096)));
  const Registration all = pair.source.register_memory(whole);
  BOOST_TEST(all.size_bytes() == pair.held.size_bytes());
  BOOST_TEST(pair.is_read_in_place() == reads_in_place());
  part = Registration();
  BOOST_TEST(pair.is_read_in_place() == reads_in_place());
  const ByteCount registered = pair.source.usage().registered_bytes;
  const Registration again = pair.source.register_memory(view(std::span(pair.held.data() + 8192, 4096)));
  BOOST_TEST(pair.source.usage().registered_bytes == registered);
}

BOOST_AUTO_TEST_CASE(memory_of_an_arena_stays_the_arenas) {
  Pair pair;
  const Arena arena = pair.source.allocate(pair.held.size_bytes());
  pair.held.use(arena.data());
  pair.held.fill(1);
  const ByteCount registered = pair.source.usage().registered_bytes;
  Registration registration = pair.source.register_memory(view(std::span(pair.held.data(), pair.held.size_bytes())));
  BOOST_TEST(pair.source.usage().registered_bytes == registered);
  BOOST_TEST(pair.is_read_in_place() == reads_arenas());
  registration = Registration();
  BOOST_TEST(pair.is_read_in_place() == reads_arenas());
  pair.held.use(nullptr);
}

BOOST_AUTO_TEST_CASE(what_was_published_from_a_registration_that_is_gone_is_sent) {
  Pair pair;
  Publication publication = [&] {
    const Registration registration =
        pair.source.register_memory(view(std::span(pair.held.data(), pair.held.size_bytes())));
    return pair.publish();
  }();
  // Its keys are withdrawn, so the bytes come as messages.
  const RestoreReport report = pair.restore();
  BOOST_TEST(pair.wanted.wrong(1) == 0U);
  BOOST_TEST(report.methods[Method::read].bytes + report.methods[Method::sieved_read].bytes +
                 report.methods[Method::mapped].bytes ==
             0U);
  BOOST_TEST(report.methods[Method::zcopy].bytes + report.methods[Method::packed].bytes == report.needed_bytes);
  publication.retire(10s);
}

BOOST_AUTO_TEST_CASE(what_was_discarded_is_not_shown_to_readers) {
  Pair pair;
  constexpr ByteCount part = ByteCount{256} << 20;
  Arena arena = pair.source.allocate(2 * part);
  BOOST_TEST((failure_of([&] { arena.discard(part, 2 * part); }).code() == ErrorCode::invalid_argument));
  BOOST_TEST(arena.discard(part / 2, part) == 0U);
  pair.held.use(arena.data() + part);
  pair.held.fill(1);
  Publication publication = pair.publish();
  const bool in_parts = reads_ordinary_memory();  // over shm
  BOOST_TEST(arena.discard(part, part) == (in_parts ? part : 0));
  if (in_parts) {
    const Error error = failure_of([&] { pair.restore(); });
    BOOST_TEST(std::string(error.what()).find("was discarded") != std::string::npos, error.what());
  } else {
    pair.restore();
    BOOST_TEST(pair.wanted.wrong(1) == 0U);
  }
  pair.held.use(nullptr);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_registered_is_refused_with_the_reason) {
  Pair pair;
  const auto refused = [&](const View& view, ErrorCode code, const std::string& why) {
    const Error error = failure_of([&] { static_cast<void>(pair.source.register_memory(view)); });
    BOOST_TEST((error.code() == code));
    BOOST_TEST(std::string(error.what()).find(why) != std::string::npos, error.what());
  };
  View unsized;
  unsized.data = pair.held.data();
  refused(unsized, ErrorCode::invalid_argument, "the size of its memory");
  View strided = view(std::span(pair.held.data(), 64));
  strided.strides = {2};
  refused(strided, ErrorCode::invalid_argument, "strides");
  refused(view(std::span(pair.held.data(), 0)), ErrorCode::invalid_argument, "none in the view");
  View nowhere = unsized;
  nowhere.data = reinterpret_cast<void*>(4096);
  nowhere.bytes = 4096;
  refused(nowhere, ErrorCode::invalid_argument, "not mapped readable");
  Registration empty;
  BOOST_TEST(!empty.valid());
  BOOST_TEST((failure_of([&] { static_cast<void>(empty.size_bytes()); }).code() == ErrorCode::invalid_argument));
}

BOOST_AUTO_TEST_SUITE_END()
