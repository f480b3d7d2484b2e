// SPDX-License-Identifier: Apache-2.0
// Three old ranks hand their state over to two new ones: FSDP over 3 becomes FSDP over 2. If a member other than 0 is killed, start
// it again. Start it once per member; the first two are the new ranks. examples/README.md has the commands and the output.
#include <chrono>
#include <cstdio>
#include <functional>
#include <shardwire/shardwire.hpp>
#include <thread>
#include <utility>
#include <vector>

using namespace shardwire;
using namespace std::chrono_literals;

namespace {

constexpr int new_ranks = 2;
constexpr int step = 20;
const TensorSpec moment{{"layer.weight", "exp_avg"}, DType::f32, {1001, 512}};

/// Repeats a call that fails because a member is lost or late, until `patience` is over. After a loss, calls may fail at once until
/// another process has the number.
void persist(std::chrono::seconds patience, const std::function<void()>& call) {
  const auto end = std::chrono::steady_clock::now() + patience;
  for (;;) {
    try {
      return call();
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      if (!error.retryable() || std::chrono::steady_clock::now() >= end) throw;
    }
    std::this_thread::sleep_for(1s);
  }
}

/// Returns when all have restored. Sources stay longer than that may take: one that ends takes its memory along.
void meet(Session& session) {
  persist(240s, [&] { session.barrier(60s); });
}

/// Rows of one rank. Each element should be its index in the whole tensor.
struct Shard {
  Shard(Rank rank, int ranks) : catalog(rank, ranks) {
    const Layout rows = Layout::chunk(0, ranks);
    first = static_cast<std::size_t>(rows.boxes_of(moment.shape, rank)[0].box.offset[0] * moment.shape[1]);
    elements.resize(static_cast<std::size_t>(rows.local_elements(moment.shape, rank)));
    catalog.add(moment, rows, view(elements));
  }
  std::size_t first = 0;
  std::vector<float> elements;
  Catalog catalog;
};

void hand_over(Session& session, Rank rank, int ranks) {
  Shard mine(rank, ranks);
  for (std::size_t i = 0; i < mine.elements.size(); ++i) mine.elements[i] = static_cast<float>(mine.first + i);
  const Registration readable = session.register_memory(view(mine.elements));
  Publication publication = session.publish(mine.catalog, {.step = step});
  std::printf("old rank %d: published %zu elements\n", to_int(rank), mine.elements.size());
  std::fflush(stdout);
  meet(session);
  publication.retire(10s);
}

void take_over(Session& session, Rank rank, int ranks) {
  Shard mine(rank, ranks);
  Restore restore = session.restore(mine.catalog, {.step = step, .timeout = 60s});
  persist(120s, [&, again = false]() mutable {
    if (std::exchange(again, true)) restore.resume(60s);  // moves only what is missing
    restore.wait();
  });
  int wrong = 0;
  float index = static_cast<float>(mine.first);
  for (const float element : mine.elements) wrong += element == index++ ? 0 : 1;
  std::printf("new rank %d: restored %zu elements, %d wrong\n", to_int(rank), mine.elements.size(), wrong);
  meet(session);
}

}  // namespace

int main() try {
  Session session = Session::join(bootstrap_from_env());
  const int member = session.rank();
  if (member < new_ranks) take_over(session, Rank{member}, new_ranks);
  if (member >= new_ranks) hand_over(session, Rank{member - new_ranks}, session.world_size() - new_ranks);
  session.close(10s);
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
