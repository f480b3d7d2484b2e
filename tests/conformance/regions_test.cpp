// SPDX-License-Identifier: Apache-2.0
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <thread>

#include "conformance/pair.hpp"

using namespace shardwire;
using namespace shardwire::test;

BOOST_AUTO_TEST_SUITE(regions)

BOOST_DATA_TEST_CASE(a_region_is_exported_and_imported, boost::unit_test::data::make({0UL, 1UL, 4097UL, 8UL << 20}),
                     size) {
  const Deadline deadline(30s);
  Pair pair;
  const auto region = pair.left->allocate(size);
  BOOST_REQUIRE(region->bytes().size() == size);
  const Bytes content = pattern(size);
  std::copy(content.begin(), content.end(), region->bytes().begin());
  BOOST_TEST(region->key().size() <= transport::max_key_bytes);

  const auto remote = pair.to_left->import_region(region->key(), size);
  const auto mapped = remote->mapped();
  BOOST_TEST(mapped.size() == (pair.right->capabilities().mapped ? size : 0));
  BOOST_TEST(std::ranges::equal(mapped, std::span(content).first(mapped.size())));
  if (!mapped.empty()) {
    region->bytes().front() = ~region->bytes().front();
    BOOST_TEST((mapped.front() == region->bytes().front()));  // the memory itself, no copy of it
  }
}

BOOST_AUTO_TEST_CASE(a_part_of_a_region_may_be_announced_but_not_more_than_all) {
  const Deadline deadline(30s);
  Pair pair;
  const auto region = pair.left->allocate(10'000);
  const auto remote = pair.to_left->import_region(region->key(), 100);
  if (pair.right->capabilities().mapped) BOOST_TEST(remote->mapped().size() == 100);
  BOOST_CHECK_EXCEPTION(pair.to_left->import_region(region->key(), 10'001), Error,
                        [](const Error& e) { return e.code() == ErrorCode::transport_failed; });
}

BOOST_AUTO_TEST_CASE(a_mapping_outlives_its_region) {
  const Deadline deadline(30s);
  Pair pair;
  auto region = pair.left->allocate(100'000);
  const Bytes content = pattern(100'000);
  std::copy(content.begin(), content.end(), region->bytes().begin());
  const auto remote = pair.to_left->import_region(region->key(), content.size());
  region.reset();
  if (pair.right->capabilities().mapped) BOOST_TEST(std::ranges::equal(remote->mapped(), content));
}

BOOST_AUTO_TEST_CASE(one_sided_reads_complete_in_progress) {
  const Deadline deadline(30s);
  Pair pair;
  const auto region = pair.left->allocate(1 << 20);
  const Bytes content = pattern(1 << 20);
  std::copy(content.begin(), content.end(), region->bytes().begin());
  const auto remote = pair.to_left->import_region(region->key(), content.size());
  Bytes into(5000);
  Result result;
  if (!pair.right->capabilities().one_sided_read) {
    BOOST_CHECK_EXCEPTION(pair.to_left->read(*remote, 0, into, result.completion()), Error,
                          [](const Error& e) { return e.code() == ErrorCode::unsupported; });
    return;
  }
  pair.to_left->read(*remote, 777, into, result.completion());
  BOOST_TEST(!result.done);
  BOOST_REQUIRE(pair.until([&] { return result.done; }));
  BOOST_TEST(std::ranges::equal(into, std::span(content).subspan(777, 5000)));
  BOOST_CHECK_THROW(pair.to_left->read(*remote, content.size() - 1, into, {}), Error);
  BOOST_CHECK_THROW(pair.to_left->read(*remote, ~0ULL, into, {}), Error);
}

BOOST_AUTO_TEST_CASE(garbled_keys_are_refused) {
  const Deadline deadline(60s);
  Pair pair;
  const auto region = pair.left->allocate(4096);
  const Bytes good = region->key();
  const auto refused = [&](const Bytes& key) {
    BOOST_CHECK_EXCEPTION(pair.to_left->import_region(key, 4096), Error,
                          [](const Error& e) { return e.code() == ErrorCode::transport_failed; });
  };
  refused({});
  refused(pattern(300));
  for (std::size_t size = 0; size < good.size(); ++size)
    refused({good.begin(), good.begin() + static_cast<long>(size)});
  Bytes longer = good;
  longer.push_back(std::byte{0});
  refused(longer);
}

BOOST_AUTO_TEST_CASE(more_memory_than_there_is_gives_a_typed_error) {
  const Deadline deadline(30s);
  const auto fabric = open_fabric();
  for (const ByteCount size : {ByteCount{1} << 50, ~ByteCount{0}}) {
    BOOST_CHECK_EXCEPTION(fabric->allocate(size), Error,
                          [](const Error& e) { return e.code() == ErrorCode::out_of_resources; });
  }
  BOOST_TEST(fabric->allocate(100)->bytes().size() == 100);
}

BOOST_AUTO_TEST_CASE(regions_come_and_go_on_other_threads) {
  const Deadline deadline(60s);
  Pair pair;
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 50; ++round) {
        const auto region = pair.left->allocate(static_cast<std::size_t>(1000 * i + round));
        static_cast<void>(region->key());
        std::ranges::fill(region->bytes(), std::byte{7});
      }
      stop = true;
    });
  }
  const Bytes payload = pattern(300'000);
  while (!stop) {
    Result sent;
    pair.to_right->send({}, payload, sent.completion());
    BOOST_REQUIRE(pair.until([&] { return sent.done; }));
  }
  for (auto& thread : threads) thread.join();
}

BOOST_AUTO_TEST_SUITE_END()
