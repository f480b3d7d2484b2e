// SPDX-License-Identifier: Apache-2.0
#include "keeper/trainer.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "support/child.hpp"

// A trainer of restart_test.cpp. Arguments: rank, ranks, port of the rendezvous, job of the keeper, number of its host (-1: there
// is one), number of the socket to the test. It restores what there is, reports the step with the number of wrong elements, and then trains: each step is
// kept, and reported. It never ends by itself.
using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

void report(int socket, std::int64_t step, std::int64_t wrong) {
  const std::int64_t both[] = {step, wrong};
  write_frame(socket, std::as_bytes(std::span(both)));
}

// The least of what the ranks find complete; 0: nothing is there.
std::int64_t agreed_step(Session& session) {
  const Inventory inventory = session.inventory("state", {}, patience);
  const bool complete = !inventory.publishers.empty() && inventory.absent.empty();
  const std::int64_t own = complete ? inventory.step : 0;
  const auto bytes = std::as_bytes(std::span(&own, 1));
  std::int64_t least = own;
  for (const Bytes& one : session.gather("newest", Bytes(bytes.begin(), bytes.end()), patience)) {
    std::int64_t step = 0;
    std::memcpy(&step, one.data(), sizeof step);
    least = std::min(least, step);
  }
  return least;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  ::alarm(300);
  const int rank = std::atoi(argv[1]);
  const int ranks = std::atoi(argv[2]);
  const int host = std::atoi(argv[5]);
  const int socket = std::atoi(argv[6]);
  try {
    SessionOptions options = quick();
    options.keeper.job = argv[4];
    if (host >= 0) {
      options.keeper.socket = socket_of_host(argv[4], host);
      options.host_domain = "host " + std::to_string(host);
    }
    Session session = Session::join(member(rank, ranks, static_cast<std::uint16_t>(std::atoi(argv[3]))), options);
    TrainedState state(rank, ranks);
    session.gather("all are there", {}, patience);
    std::int64_t step = agreed_step(session);
    if (step > 0) {
      RestoreOptions from = within(patience);
      from.step = step;
      Restore restore = session.restore(state.wanted(), from);
      restore.wait();
      const bool same = restore.value({"", "step"}) == Value(step);
      report(socket, step, static_cast<std::int64_t>(state.wrong(step)) + (same ? 0 : 1));
    } else {
      report(socket, 0, 0);
    }
    session.gather("all have restored", {}, patience);
    Publication publication;
    while (true) {
      ++step;
      session.gather("step " + std::to_string(step), {}, patience);  // as gradients do
      state.set(step);
      publication = Publication();
      publication =
          session.publish(state.held(step), {.step = step, .keep = {.steps = 1}, .buddies = host >= 0 ? 1 : 0});
      report(socket, step, -1);
      state.set(4711);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trainer %d: %s\n", rank, error.what());
    return 1;
  }
}
