// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include "wire/exchange_note.hpp"

#include <boost/test/unit_test.hpp>

#include "support/seed.hpp"
#include "wire/samples.hpp"

BOOST_AUTO_TEST_SUITE(exchange_note)

using namespace samples;

namespace {

void check_refused(const ExchangeNote& note, const std::string& field) {
  BOOST_CHECK_EXCEPTION((void)decode_exchange_note(encode_exchange_note(note)), Error, [&](const Error& error) {
    return error.code() == ErrorCode::transport_failed && std::string(error.what()).find(field) != std::string::npos;
  });
}

}  // namespace

BOOST_AUTO_TEST_CASE(notes_survive_a_round_trip) {
  Maker maker(test_seed());
  for (int round = 0; round < 200; ++round) {
    const ExchangeNote note = maker.exchange_note();
    BOOST_CHECK(decode_exchange_note(encode_exchange_note(note)) == note);
  }
  BOOST_CHECK(decode_exchange_note(encode_exchange_note({})) == ExchangeNote{});
}

BOOST_AUTO_TEST_CASE(indices_outside_of_the_list_and_slices_past_their_count_are_refused) {
  const ExchangePart part{{"w", "m"}, 0, 1};
  check_refused({.parts = {part}, .writes = {{1, 8, {}}}}, "writes");
  check_refused({.parts = {part}, .writes = {{0, 8, {0, 7}}}}, "writes");
  check_refused({.parts = {{{"w", "m"}, 4, 4}}}, "parts");
  check_refused({.parts = {{{"w", "m"}, 0, 0}}}, "parts");
}

BOOST_AUTO_TEST_CASE(layout_ranks_that_there_cannot_be_are_refused) {
  check_refused({.held_rank = -2}, "heldRank");
  check_refused({.held_rank = (1 << 24) + 1}, "heldRank");
}

BOOST_AUTO_TEST_CASE(devices_that_there_cannot_be_and_ids_that_are_too_long_are_refused) {
  check_refused({.device = -2}, "device");
  check_refused({.kept_group = Bytes(257)}, "keptGroup");
}

BOOST_AUTO_TEST_CASE(a_number_after_which_none_would_be_left_is_refused) {
  check_refused({.number = max_exchange_number + 1}, "number");
}

BOOST_AUTO_TEST_CASE(requests_that_cannot_be_cut_are_refused) {
  const Box box = Box::whole({4});
  check_refused({.requests = {{0, 0, box, 16, 8, 0}}}, "requests");
  check_refused({.requests = {{0, 0, box, 16, 0, 4}}}, "requests");
  check_refused({.requests = {{0, 0, box, 16, 6, 4}}}, "requests");
  check_refused({.requests = {{0, 0, box, 12, 8, 4}}}, "requests");
}

BOOST_AUTO_TEST_SUITE_END()
