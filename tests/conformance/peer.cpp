// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "conformance/other_process.hpp"

// The other process of departure_test.cpp. Arguments: task, number of the socket to the test. It sends its address, a
// region's key and its protocol, receives the test's address, and runs until it is killed.
using namespace shardwire;
using namespace shardwire::test;

namespace {

constexpr std::size_t payload_bytes = 32 << 20;

int work(const std::string& task, int socket) {
  const auto fabric = open_fabric();
  Bytes own = pattern(1 << 20, 5);
  const auto region = task == "adopted" ? fabric->adopt(transport::host_memory(own)) : fabric->allocate(own.size());
  if (task != "adopted") std::ranges::copy(own, region->memory().span().begin());
  write_frame(socket, fabric->address());
  send_key(socket, *region);
  auto sockets = connect_sockets(socket, *fabric);
  const Bytes address = read_frame(socket);
  const auto endpoint = fabric->connect({.address = address, .same_host = true, .sockets = std::move(sockets)});

  Bytes into(payload_bytes);
  const Bytes payload = pattern(payload_bytes);
  fabric->on_message([&](transport::Incoming& incoming) {
    incoming.receive(transport::host_memory(into).part(0, incoming.payload_bytes()), [](const transport::Outcome&) {});
  });
  int under_way = 0;
  const auto flood = [&] {
    for (; under_way < 3; ++under_way) {
      send(*endpoint, text("flood"), payload, [&](const transport::Outcome&) { --under_way; });
    }
  };
  if (endpoint->path({}).message) {
    Result ready;
    send(*endpoint, text("ready"), {}, ready.completion());
    while (!ready.done) fabric->progress();
  }
  while (true) {
    if (task == "flood") flood();
    if (task == "close") return 0;
    fabric->progress();
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    ::alarm(60);  // in case the test ends without ending it
    return argc == 3 ? work(argv[1], std::atoi(argv[2])) : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "peer: %s\n", error.what());
    return 1;
  }
}
