// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <future>
#include <thread>

#include "conformance/pair.hpp"

namespace threads {

// A fabric per thread, like ranks that are threads of one process.
using namespace shardwire;
using namespace shardwire::test;

}  // namespace threads

BOOST_AUTO_TEST_SUITE(threads,
                      *boost::unit_test::label("messages") * boost::unit_test::precondition(paths_have_messages))

BOOST_AUTO_TEST_CASE(fabrics_of_different_threads_exchange_messages_and_memory) {
  const Deadline deadline(120s);
  constexpr std::size_t ranks = 3;
  constexpr std::size_t rounds = 40;
  std::array<std::promise<Bytes>, ranks> addresses;
  std::array<std::promise<Bytes>, ranks> keys;
  std::array<std::shared_future<Bytes>, ranks> known_addresses;
  std::array<std::shared_future<Bytes>, ranks> known_keys;
  std::array<std::array<std::vector<transport::OpenSocket>, ranks>, ranks> sockets;  // [rank][peer]
  const transport::SocketNeeds wanted = open_fabric()->sockets();
  for (std::size_t i = 0; i < ranks; ++i) {
    for (std::size_t peer = 0; peer < i; ++peer) {
      SocketsBetween made = make_sockets(wanted);
      sockets[i][peer] = std::move(made.here);
      sockets[peer][i] = std::move(made.there);
    }
  }
  for (std::size_t i = 0; i < ranks; ++i) {
    known_addresses[i] = addresses[i].get_future().share();
    known_keys[i] = keys[i].get_future().share();
  }
  std::atomic<std::size_t> finished = 0;
  std::atomic<std::size_t> wrong = 0;

  const auto rank = [&](std::size_t me) {
    Mailbox mail;
    const auto fabric = open_fabric();
    mail.attach(*fabric);
    const auto region = fabric->allocate(50'000);
    std::ranges::copy(pattern(50'000, me), region->memory().span().begin());
    keys[me].set_value(region->key());
    addresses[me].set_value(fabric->address());

    std::vector<std::unique_ptr<transport::Endpoint>> endpoints;
    std::vector<std::unique_ptr<transport::RemoteRegion>> remotes;
    const Bytes payload = pattern(100'000, me);
    std::size_t sent = 0;
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      if (peer == me) continue;
      auto& endpoint = endpoints.emplace_back(fabric->connect(
          {.address = known_addresses[peer].get(), .same_host = true, .sockets = std::move(sockets[me][peer])}));
      if (const Bytes key = known_keys[peer].get(); !key.empty()) {
        const auto& remote = remotes.emplace_back(endpoint->import_region({key}, 50'000));
        const Bytes content = pattern(50'000, peer);
        if (!same_bytes(remote->mapped().span(), std::span(content).first(remote->mapped().bytes))) ++wrong;
      }
      for (std::size_t i = 0; i < rounds; ++i) {
        const std::size_t size = i % 3 == 0 ? payload.size() : i;
        send(*endpoint, std::as_bytes(std::span(&me, 1)), std::span(payload).first(size), [&](const auto& outcome) {
          if (outcome) ++wrong;
          ++sent;
        });
      }
    }
    constexpr std::size_t expected = rounds * (ranks - 1);
    bool counted = false;
    while (finished < ranks) {
      fabric->progress();
      if (!counted && sent == expected && mail.complete() == expected) {
        counted = true;
        ++finished;
      }
    }
    for (const auto& message : mail.messages) {
      std::size_t from = 0;
      std::memcpy(&from, message->header.data(), sizeof from);
      const Bytes whole = pattern(100'000, from);
      if (!same_bytes(message->payload, std::span(whole).first(message->payload.size()))) ++wrong;
    }
    remotes.clear();
    endpoints.clear();
  };
  std::vector<std::thread> all;
  for (std::size_t i = 0; i < ranks; ++i) all.emplace_back(rank, i);
  for (auto& thread : all) thread.join();
  BOOST_TEST(wrong == 0U);
}

BOOST_AUTO_TEST_CASE(a_fabric_is_closed_while_another_thread_sends_to_it) {
  const Deadline deadline(120s);
  for (int round = 0; round < 10; ++round) {
    auto left = open_fabric();
    SocketsBetween sockets = make_sockets(left->sockets());
    std::promise<Bytes> address;
    auto known = address.get_future();
    std::atomic<bool> connected = false;
    const Bytes left_address = left->address();
    std::thread receiver([&] {
      Mailbox mail;
      auto right = open_fabric();
      mail.attach(*right);
      EndpointOwner back;
      if (!sockets.there.empty()) {
        back = right->connect({.address = left_address, .same_host = true, .sockets = std::move(sockets.there)});
      }
      address.set_value(right->address());
      while (!connected) right->progress();
      run_until([&] { right->progress(); }, [&] { return mail.complete() > 5; }, promptly);
      back.reset();
      right.reset();
    });
    const auto endpoint =
        left->connect({.address = known.get(), .same_host = true, .sockets = std::move(sockets.here)});
    connected = true;
    const Bytes payload = pattern(80'000);
    int under_way = 0;
    run_until(
        [&] {
          for (; under_way < 8; ++under_way) send(*endpoint, {}, payload, [&](const auto&) { --under_way; });
          left->progress();
        },
        [&] { return endpoint->failed(); }, promptly);
    BOOST_TEST(endpoint->failed());
    BOOST_TEST(run_until([&] { left->progress(); }, [&] { return under_way == 0; }, promptly));
    receiver.join();
  }
}

BOOST_AUTO_TEST_SUITE_END()
