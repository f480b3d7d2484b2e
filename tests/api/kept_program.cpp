// SPDX-License-Identifier: Apache-2.0
// A trainer whose host has a keeper (SHARDWIRE_KEEPER). It goes on from the newest step that is there, and prints it; with the
// argument `train` it then keeps step after step until it is killed. tests/launchers/check starts it.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include "shardwire/shardwire.hpp"

using namespace shardwire;
using namespace std::chrono_literals;

namespace {

constexpr Extent rows = 1200;
constexpr Extent columns = 64;

float element(Extent row, std::int64_t step) {
  return static_cast<float>(row) + 1000.0F * static_cast<float>(step);
}

std::int64_t least(const std::vector<Bytes>& values) {
  std::int64_t result = INT64_MAX;
  for (const Bytes& one : values) {
    std::int64_t value = 0;
    std::memcpy(&value, one.data(), sizeof value);
    result = std::min(result, value);
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const bool trains = argc > 1 && std::strcmp(argv[1], "train") == 0;
    Session session = Session::join(bootstrap_from_env());
    const int rank = session.rank();
    const Layout layout = Layout::chunk(0, session.world_size());
    const TensorSpec spec{{"w", "exp_avg"}, DType::f32, {rows, columns}};
    std::vector<float> memory(static_cast<std::size_t>(layout.local_elements(spec.shape, Rank{rank})));
    Catalog catalog(Rank{rank}, session.world_size());
    catalog.add(spec, layout, View{.data = memory.data()});
    const auto first = layout.boxes_of(spec.shape, Rank{rank}).front().box.offset[0];

    session.gather("joined", {}, 60s);
    const Inventory found = session.inventory("state", {}, 60s);
    std::int64_t step = found.publishers.empty() || !found.absent.empty() ? 0 : found.step;
    Bytes own(sizeof step);
    std::memcpy(own.data(), &step, sizeof step);
    step = least(session.gather("step", own, 60s));
    if (step > 0) {
      RestoreOptions options;
      options.step = step;
      session.restore(catalog, options).wait();
      for (std::size_t i = 0; i < memory.size(); ++i) {
        if (memory[i] != element(first + static_cast<Extent>(i) / columns, step))
          throw std::runtime_error("a wrong element");
      }
    }
    std::printf("rank %d goes on from step %lld\n", rank, static_cast<long long>(step));
    session.gather("restored", {}, 60s);
    Publication publication;
    while (trains) {
      ++step;
      for (std::size_t i = 0; i < memory.size(); ++i)
        memory[i] = element(first + static_cast<Extent>(i) / columns, step);
      session.gather("step " + std::to_string(step), {}, 60s);  // as gradients do
      publication = Publication();
      publication = session.publish(catalog, {.step = step, .keep = {.steps = 1}});
      std::this_thread::sleep_for(50ms);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
