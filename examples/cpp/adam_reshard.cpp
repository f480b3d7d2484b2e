// SPDX-License-Identifier: Apache-2.0
// Four ranks train a model with their own Adam. After step 20, three of them go on: FSDP over 4 becomes FSDP over 3.
// Start it once per rank. examples/README.md has the commands and the output.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <shardwire/shardwire.hpp>
#include <string>
#include <string_view>
#include <vector>

using namespace shardwire;
using namespace std::chrono_literals;

namespace {

/// This rank's rows of one parameter, with the state that Adam keeps for it.
struct Parameter {
  std::string name;
  Extents shape;
  std::size_t first = 0;  ///< index in the whole tensor of the first element that is here
  std::vector<float> weight{}, exp_avg{}, exp_avg_sq{};
};
using Model = std::vector<Parameter>;

/// The rows that `rank` has under `layout`.
Model shard(const Layout& layout, Rank rank) {
  Model model;
  for (const auto& [name, shape] : {std::pair{"embedding", Extents{1000, 64}}, std::pair{"output", Extents{250, 64}}}) {
    const auto boxes = layout.boxes_of(shape, rank);
    const auto elements = static_cast<std::size_t>(layout.local_elements(shape, rank));
    Parameter parameter{.name = name, .shape = shape};
    if (!boxes.empty()) parameter.first = static_cast<std::size_t>(boxes[0].box.offset[0] * shape[1]);
    for (auto* part : {&parameter.weight, &parameter.exp_avg, &parameter.exp_avg_sq}) part->resize(elements);
    model.push_back(std::move(parameter));
  }
  return model;
}

/// Adam on the loss (weight - target)^2 / 2, where the target of an element follows from its index.
void train(Model& model, std::int64_t first_step, std::int64_t last_step) {
  for (std::int64_t step = first_step; step <= last_step; ++step) {
    const float correction = 1 - std::pow(0.9F, static_cast<float>(step));
    const float correction_sq = 1 - std::pow(0.999F, static_cast<float>(step));
    for (Parameter& p : model) {
      for (std::size_t i = 0; i < p.weight.size(); ++i) {
        const float gradient = p.weight[i] - std::sin(static_cast<float>(p.first + i));
        p.exp_avg[i] += 0.1F * (gradient - p.exp_avg[i]);
        p.exp_avg_sq[i] += 0.001F * (gradient * gradient - p.exp_avg_sq[i]);
        p.weight[i] -= 0.01F * p.exp_avg[i] / correction / (std::sqrt(p.exp_avg_sq[i] / correction_sq) + 1e-8F);
      }
    }
  }
}

/// Lists what this rank has, or wants, under `layout` over `ranks` ranks.
Catalog catalog_of(Model& model, const Layout& layout, Rank rank, int ranks) {
  Catalog catalog(rank, ranks);
  for (Parameter& p : model) {
    catalog.add({{p.name, "param"}, DType::f32, p.shape}, layout, view(p.weight));
    catalog.add({{p.name, "exp_avg"}, DType::f32, p.shape}, layout, view(p.exp_avg));
    catalog.add({{p.name, "exp_avg_sq"}, DType::f32, p.shape}, layout, view(p.exp_avg_sq));
  }
  return catalog;
}

/// Lets peers read the memory in place. Without this they can read it too, but not by RDMA.
std::vector<Registration> registered(Session& session, Model& model) {
  std::vector<Registration> result;
  for (Parameter& p : model) {
    for (auto* part : {&p.weight, &p.exp_avg, &p.exp_avg_sq}) result.push_back(session.register_memory(view(*part)));
  }
  return result;
}

/// Restores what `wanted` lists, at most three times.
RestoreReport restored(Session& session, const Catalog& wanted, std::int64_t step) {
  Restore restore = session.restore(wanted, {.step = step, .timeout = 60s});
  for (int attempt = 1;; ++attempt) {
    try {
      restore.wait();
      return restore.report();
    } catch (const Error& error) {
      std::fprintf(stderr, "attempt %d: %s\n", attempt, error.what());  // names ranks
      for (const Gap& gap : error.gaps()) {
        std::fprintf(stderr, "missing: %s:%s %s\n", gap.fqn.c_str(), gap.state.c_str(), to_string(gap.box).c_str());
      }
      if (!error.retryable() || attempt == 3) throw;
      if (error.code() == ErrorCode::withdrawn || error.code() == ErrorCode::step_mismatch) {
        restore = session.restore(wanted, {.step = step, .timeout = 60s});  // the sources publish anew
      } else {
        restore.resume(60s);  // moves only what is missing
      }
    }
  }
}

std::string summary(int rank, const RestoreReport& report) {
  std::string line = "rank " + std::to_string(rank) + ": needed " + std::to_string(report.needed_bytes) +
                     " bytes, had " + std::to_string(report.local_bytes) + ", moved " +
                     std::to_string(report.moved_bytes) + " (";
  bool first = true;
  for (const PeerReport& peer : report.peers) {
    if (peer.path == "local") continue;
    line += (first ? "" : ", ") + std::to_string(peer.bytes) + " from rank " + std::to_string(to_int(peer.rank));
    first = false;
  }
  return line + ")";
}

/// Whether the state is, bit for bit, that of a training without a change of layout.
bool as_without_change(Model& model, const Layout& layout, Rank rank, std::int64_t steps) {
  Model expected = shard(layout, rank);
  train(expected, 1, steps);
  const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  };
  return std::equal(model.begin(), model.end(), expected.begin(), expected.end(), [&](const auto& a, const auto& b) {
    return same(a.weight, b.weight) && same(a.exp_avg, b.exp_avg) && same(a.exp_avg_sq, b.exp_avg_sq);
  });
}

}  // namespace

int main() try {
  Session session = Session::join(bootstrap_from_env());
  const int before = session.world_size(), after = before - 1;
  const Rank me{session.rank()};

  const Layout old_layout = Layout::chunk(0, before);
  Model model = shard(old_layout, me);
  train(model, 1, 20);
  const std::vector<Registration> readable = registered(session, model);
  Publication publication = session.publish(catalog_of(model, old_layout, me, before), {.step = 20});

  std::string line = "rank " + std::to_string(to_int(me)) + ": gives its state away and leaves";
  bool correct = true;
  const Layout new_layout = Layout::chunk(0, after);
  Model next = shard(new_layout, me);  // of the last rank: empty
  if (to_int(me) < after) {
    const RestoreReport report = restored(session, catalog_of(next, new_layout, me, after), 20);
    train(next, 21, 40);
    correct = as_without_change(next, new_layout, me, 40);
    line = summary(to_int(me), report) + (correct ? ", step 40 is right" : ", step 40 is WRONG");
  }

  // Nobody leaves, or changes what it has published, before all have read.
  session.barrier(60s);
  publication.retire(10s);

  Bytes text(line.size());
  std::memcpy(text.data(), line.data(), line.size());
  for (const Bytes& one : session.gather("line", text, 60s)) {
    if (to_int(me) != 0) break;
    std::printf("%.*s\n", static_cast<int>(one.size()), reinterpret_cast<const char*>(one.data()));
  }
  session.close(10s);
  return correct ? 0 : 1;
} catch (const Error& error) {
  std::fprintf(stderr, "%s: %s\n", std::string(to_string(error.code())).c_str(), error.what());
  return 1;
}
