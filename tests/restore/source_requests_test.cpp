// SPDX-License-Identifier: Apache-2.0
// The lease on a source and the requests under it, over a fake link.
#include "restore/source_requests.hpp"

#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "restore/made_source.hpp"

BOOST_AUTO_TEST_SUITE(source_requests)

using namespace shardwire;
using namespace shardwire::test;
using restore::SourceRequests;

namespace {

constexpr std::uint64_t lease = MadeSource::lease;
constexpr std::uint64_t first_number = 1000;  // as in MadeContext

struct Bench {
  Bench() { made.binding.link = made.link; }

  void to_leased() {
    requests->ask_for_lease([this] { ++granted; });
    made.link->answer(wire::Leased{0, lease, MadeSource::step});
  }
  template <typename Message>
  [[nodiscard]] const Message& asked() const {
    return std::get<Message>(made.link->requests.at(0).message);
  }
  [[nodiscard]] ErrorCode failure() const {
    BOOST_REQUIRE(failures.size() == 1U);
    try {
      std::rethrow_exception(failures.front());
    } catch (const Error& error) {
      return error.code();
    }
  }

  MadeSource made;
  std::vector<std::exception_ptr> failures;
  int granted = 0;
  std::unique_ptr<SourceRequests> requests = std::make_unique<SourceRequests>(
      made.context, made.binding, "model", [this](const std::exception_ptr& error) { failures.push_back(error); });
};

}  // namespace

BOOST_AUTO_TEST_CASE(requests_are_numbered_and_counted_until_they_are_answered) {
  Bench bench;
  bench.requests->ask_for_lease([&] { ++bench.granted; });
  BOOST_TEST(bench.asked<wire::Lease>().request == first_number);
  BOOST_TEST(bench.requests->unanswered() == 1);
  BOOST_TEST(!bench.requests->was_leased());
  bench.made.link->answer(wire::Leased{0, lease, MadeSource::step});
  BOOST_TEST(bench.granted == 1);
  BOOST_TEST(bench.requests->lease() == lease);
  BOOST_TEST(bench.requests->unanswered() == 0);
  BOOST_TEST(bench.requests->was_leased());
  bench.requests->ask_for_digests({}, [](const auto&) {});
  BOOST_TEST(bench.asked<wire::DigestRequest>().request == first_number + 1);
  BOOST_TEST(bench.asked<wire::DigestRequest>().lease == lease);
}

BOOST_AUTO_TEST_CASE(a_refusal_is_a_failure_that_names_the_source) {
  Bench bench;
  bench.requests->ask_for_lease([] { BOOST_ERROR("it was refused"); });
  bench.made.link->refuse(ErrorCode::withdrawn);
  BOOST_TEST((bench.failure() == ErrorCode::withdrawn));
  BOOST_TEST(bench.requests->unanswered() == 0);
  BOOST_TEST(bench.requests->lease() == 0U);
}

BOOST_AUTO_TEST_CASE(an_error_of_a_callback_is_a_failure) {
  Bench bench;
  bench.requests->ask_for_lease([] { throw Error(ErrorCode::unsupported, "not so"); });
  bench.made.link->answer(wire::Leased{0, lease, MadeSource::step});
  BOOST_TEST((bench.failure() == ErrorCode::unsupported));
}

BOOST_AUTO_TEST_CASE(nothing_is_asked_or_answered_after_the_end) {
  Bench bench;
  bench.to_leased();
  bench.requests->ask_for_digests({}, [](const auto&) { BOOST_ERROR("it has ended"); });
  bench.requests->end();
  BOOST_TEST(bench.requests->unanswered() == 0);
  const std::size_t made = bench.made.link->requests_made;
  bench.requests->ask_if_live([] { BOOST_ERROR("it has ended"); });
  bench.requests->ask_for_digests({}, [](const auto&) { BOOST_ERROR("it has ended"); });
  bench.requests->ask_for_payload({.request = 50, .lease = 0, .parts = {}}, [](const std::string&) {});
  BOOST_TEST(bench.made.link->requests_made == made);
  bench.made.link->answer(wire::Digests{});
  BOOST_TEST(bench.requests->unanswered() == 0);
  BOOST_TEST(bench.failures.empty());
}

BOOST_AUTO_TEST_CASE(a_lease_is_returned_once) {
  Bench bench;
  bench.requests->watch([](const Error&) {});
  bench.to_leased();
  bench.requests->give_back();
  bench.requests->give_back();
  BOOST_TEST(bench.made.link->posted_releases(lease) == 1U);
  BOOST_TEST(bench.made.link->unwatched == 1);
  BOOST_TEST(bench.requests->lease() == 0U);
}

BOOST_AUTO_TEST_CASE(a_lease_that_comes_after_the_end_is_returned) {
  for (const bool destroyed : {false, true}) {
    Bench bench;
    bench.requests->ask_for_lease([] { BOOST_ERROR("it has ended"); });
    bench.requests->end();
    if (destroyed) bench.requests.reset();
    bench.made.link->answer(wire::Leased{0, lease, MadeSource::step});
    BOOST_TEST(bench.made.link->posted_releases(lease) == 1U);
  }
}

BOOST_AUTO_TEST_CASE(confirming_under_a_lease_returns_it) {
  Bench bench;
  bench.to_leased();
  int intact = 0;
  bench.requests->confirm([&] { ++intact; });
  BOOST_TEST(bench.asked<wire::Release>().lease == lease);
  BOOST_TEST(bench.requests->lease() == 0U);
  bench.made.link->answer(wire::Released{0, true});
  BOOST_TEST(intact == 1);
  bench.requests->give_back();
  BOOST_TEST(bench.made.link->posted.empty());
}

BOOST_AUTO_TEST_CASE(confirming_without_a_lease_names_the_generation) {
  Bench bench;
  bench.requests->confirm([] { BOOST_ERROR("the bytes have changed"); });
  BOOST_TEST(bench.asked<wire::Confirm>().generation == MadeSource::generation);
  bench.made.link->answer(wire::Released{0, false});
  BOOST_TEST((bench.failure() == ErrorCode::withdrawn));
}

BOOST_AUTO_TEST_CASE(payload_is_requested_under_the_lease_or_for_the_generation) {
  for (const bool leased : {true, false}) {
    Bench bench;
    if (leased) bench.to_leased();
    bench.requests->ask_for_payload({.request = 50, .lease = 0, .parts = {}}, [](const std::string&) {});
    const auto& request = bench.asked<wire::PackRequest>();
    BOOST_TEST(request.request == 50U);
    BOOST_TEST(request.lease == (leased ? lease : 0U));
    BOOST_TEST(request.generation == (leased ? 0U : MadeSource::generation));
    BOOST_TEST(bench.requests->unanswered() == 0);  // the payload answers the request
  }
}

BOOST_AUTO_TEST_SUITE_END()
