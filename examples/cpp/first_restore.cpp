// SPDX-License-Identifier: Apache-2.0
// Each rank holds rows of a tensor, and restores columns of it. docs/first-restore.md has the commands and the output.
#include <chrono>
#include <cstdio>
#include <shardwire/shardwire.hpp>
#include <vector>

using namespace shardwire;
using namespace std::chrono_literals;

int main() try {
  Session session = Session::join(bootstrap_from_env());
  const int ranks = session.world_size();
  const Rank me{session.rank()};
  const TensorSpec moment{{"layer.weight", "exp_avg"}, DType::f32, {1024, 512}};
  const Layout rows = Layout::chunk(0, ranks), columns = Layout::chunk(1, ranks);

  std::vector<float> mine(static_cast<std::size_t>(rows.local_elements(moment.shape, me)));
  for (float& element : mine) element = static_cast<float>(session.rank());  // so that one sees whose it is
  Catalog held(me, ranks);
  held.add(moment, rows, view(mine));
  Publication publication = session.publish(held, {.step = 1000});

  std::vector<float> restored(static_cast<std::size_t>(columns.local_elements(moment.shape, me)));
  Catalog wanted(me, ranks);
  wanted.add(moment, columns, view(restored));
  Restore restore = session.restore(wanted, {.timeout = 60s});
  restore.wait();

  const RestoreReport& report = restore.report();
  std::printf("rank %d: %llu bytes from peers, %llu of its own, first element %g, last element %g\n", session.rank(),
              static_cast<unsigned long long>(report.moved_bytes), static_cast<unsigned long long>(report.local_bytes),
              restored.front(), restored.back());
  session.barrier(60s);  // a member that leaves takes its memory along
  publication.retire(10s);
  return 0;
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
