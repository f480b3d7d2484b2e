// SPDX-License-Identifier: Apache-2.0
// Plans executed in this process: every byte of every target buffer, padding included, is right.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstring>
#include <functional>

#include "memory/strided_copy.hpp"
#include "shardwire/plan.hpp"
#include "support/random_layout.hpp"
#include "support/sanitizer.hpp"

BOOST_AUTO_TEST_SUITE(reshard_in_process)

namespace {

using namespace shardwire;
using test::Slots;

/// A distribution of tensors over ranks.
struct Side {
  std::string name;
  JobLayout job;
};

constexpr ByteCount item = 4;  // f32
constexpr std::byte poison{0xFF};

std::uint32_t value_of(const TensorKey& key, ElementCount index) {
  const auto seed = std::hash<std::string>{}(to_string(key));
  const auto value = static_cast<std::uint32_t>((seed ^ static_cast<std::size_t>(index)) * 0x9e3779b97f4a7c15U >> 32);
  return value & 0x7fffffffU;  // never the NaN that marks padding
}

/// One rank's memory: a buffer per tensor, all padding set to NaN.
class RankMemory {
 public:
  RankMemory(const JobLayout& job, Rank rank) : rank_(rank) {
    for (const Section& section : job.sections) {
      if (std::find(section.ranks.begin(), section.ranks.end(), rank) != section.ranks.end())
        manifest_ = section.manifest;
    }
    if (!manifest_) return;
    for (const TensorLayout& tensor : manifest_->tensors) {
      const ElementCount elements = tensor.layout.local_elements(tensor.spec.shape, rank);
      buffers_.emplace_back(static_cast<std::size_t>(elements) * item, poison);
    }
  }

  [[nodiscard]] std::byte* buffer(TensorId tensor) { return buffers_[to_index(tensor)].data(); }
  [[nodiscard]] PlacedBox around(TensorId tensor, const Box& box) const {
    const TensorLayout& of = manifest_->tensors[to_index(tensor)];
    for (const PlacedBox& placed : of.layout.boxes_of(of.spec.shape, rank_)) {
      if (contains(placed.box, box)) return placed;
    }
    throw std::runtime_error("no box of rank " + std::to_string(to_int(rank_)) + " holds " + to_string(box));
  }

  /// The required content of each position: a value of the tensor, or the padding mark.
  [[nodiscard]] std::vector<std::vector<std::byte>> expected() const {
    std::vector<std::vector<std::byte>> all = buffers_;
    for (std::size_t t = 0; t < all.size(); ++t) {
      const TensorSpec& spec = manifest_->tensors[t].spec;
      std::fill(all[t].begin(), all[t].end(), poison);
      for (const PlacedBox& placed : manifest_->tensors[t].layout.boxes_of(spec.shape, rank_)) {
        test::for_each_index(placed.box.size, test::row_major(spec.shape.size()), [&](const Extents& inside) {
          Extents at = inside;
          ElementCount local = placed.local_offset;
          for (std::size_t dim = 0; dim < spec.shape.size(); ++dim) {
            at[dim] += placed.box.offset[dim];
            local += inside[dim] * placed.local_strides[dim];
          }
          const std::uint32_t value = value_of(spec.key, test::global_index(spec.shape, at));
          std::memcpy(all[t].data() + static_cast<std::size_t>(local) * item, &value, item);
        });
      }
    }
    return all;
  }
  void fill() { buffers_ = expected(); }
  [[nodiscard]] bool right() const { return buffers_ == expected(); }

 private:
  Rank rank_;
  std::shared_ptr<const Manifest> manifest_;
  std::vector<std::vector<std::byte>> buffers_;
};

/// Returns the bytes copied.
ByteCount reshard(const JobLayout& from, const JobLayout& to) {
  std::vector<RankMemory> sources;
  for (int rank = 0; rank < from.ranks; ++rank) sources.emplace_back(from, Rank{rank}).fill();
  Planner planner(from, to);
  ByteCount bytes = 0;
  for (int rank = 0; rank < to.ranks; ++rank) {
    RankMemory target(to, Rank{rank});
    const Plan plan = planner.plan(Rank{rank});
    const Schedule schedule = planner.schedule(plan);
    for (const ScheduledPiece& one : schedule.items) {
      const TensorId wanted = plan.pieces[one.piece].tensor;
      const Box& box = schedule.box(one);
      RankMemory& source = sources[static_cast<std::size_t>(to_int(one.source))];
      const memory::StridedCopy copy(box, source.around(one.held, box), target.around(wanted, box), item);
      copy.run_all(source.buffer(one.held), target.buffer(wanted));
      bytes += copy.bytes();
    }
    BOOST_TEST(target.right(), "target rank " << rank);
  }
  return bytes;
}

bool has_all(const JobLayout& from, const JobLayout& to) {
  Planner planner(from, to);
  for (int rank = 0; rank < to.ranks; ++rank) {
    if (!planner.plan(Rank{rank}).gaps.empty()) return false;
  }
  return true;
}

void check_each_into_each(const std::vector<Side>& sides) {
  for (const Side& from : sides) {
    for (const Side& to : sides) {
      if (&from == &to) continue;
      BOOST_TEST_CONTEXT(from.name << " -> " << to.name) {
        BOOST_TEST(reshard(from.job, to.job) > 0U);
      }
    }
  }
}

TensorSpec spec(const std::string& fqn, const Extents& shape) {
  return {{fqn, "exp_avg"}, DType::f32, shape};
}

Side one_tensor(const std::string& name, int ranks, const Extents& shape, const Layout& layout) {
  return {name, JobLayout::uniform(ranks, {{spec("w", shape), layout}})};
}

/// Weights and biases of five layers of widths 5, 10, 15, 30, 5.
struct Parameter {
  std::string fqn;
  Extents shape;
};
std::vector<Parameter> mlp() {
  std::vector<Parameter> all;
  const std::vector<Extent> widths{5, 10, 15, 30, 5};
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const Extent in = i == 0 ? 5 : widths[i - 1];
    const std::string at = "layers." + std::to_string(i);
    all.push_back({at + ".weight", {widths[i], in}});
    all.push_back({at + ".bias", {widths[i]}});
  }
  return all;
}

Side mlp_with(const std::string& name, int ranks, const std::function<Layout(const Parameter&, std::size_t)>& layout) {
  std::vector<TensorLayout> tensors;
  const auto parameters = mlp();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    tensors.push_back({spec(parameters[i].fqn, parameters[i].shape), layout(parameters[i], i)});
  }
  return {name, JobLayout::uniform(ranks, std::move(tensors))};
}

Side mlp_flat(const std::string& name, int world, Extent align, bool tensor_parallel) {
  std::vector<FlatMember> members;
  for (const Parameter& parameter : mlp()) {
    FlatMember& member = members.emplace_back(FlatMember{parameter.shape});
    if (tensor_parallel) member.outer = parameter.shape.size() == 2 ? Layout::chunk(0, 2) : Layout::replicated();
  }
  const int outer_ranks = tensor_parallel ? 2 : 1;
  const auto layouts = Layout::flat(members, world, align, outer_ranks);
  return mlp_with(name, world * outer_ranks, [&](const Parameter&, std::size_t i) { return layouts[i]; });
}

}  // namespace

BOOST_AUTO_TEST_CASE(all_pairs_of_placements_on_a_square_mesh) {
  const Extents shape{7, 5};
  const auto mesh = [&](const char* name, const Placement& outer, const Placement& inner) {
    return one_tensor(name, 4, shape, Layout::mesh({2, 2}, {outer, inner}));
  };
  check_each_into_each({mesh("RR", Replicate{}, Replicate{}), mesh("R.S(0)", Replicate{}, Shard{0}),
                        mesh("S(0).R", Shard{0}, Replicate{}), mesh("S(0).S(0)", Shard{0}, Shard{0})});
}

BOOST_AUTO_TEST_CASE(meshes_of_one_and_two_dims) {
  const Extents shape{13, 6};
  check_each_into_each({
      one_tensor("(4) [S(0)]", 4, shape, Layout::mesh({4}, {Shard{0}})),
      one_tensor("(3) [S(1)]", 3, shape, Layout::mesh({3}, {Shard{1}})),
      one_tensor("(2, 2) [S(0), S(1)]", 4, shape, Layout::mesh({2, 2}, {Shard{0}, Shard{1}})),
      one_tensor("(2, 2) [S(1), S(0)]", 4, shape, Layout::mesh({2, 2}, {Shard{1}, Shard{0}})),
      one_tensor("(3, 2) [SS(0,2), S(0)]", 6, shape, Layout::mesh({3, 2}, {StridedShard{0, 2}, Shard{0}})),
      one_tensor("(3, 2) tp_first", 6, shape,
                 Layout::mesh({3, 2}, {StridedShard{0, 2}, Shard{0}}, MeshOrder::tp_first)),
  });
}

BOOST_AUTO_TEST_CASE(world_sizes) {
  const Extents shape{25, 6};
  const auto fsdp = [&](int ranks) {
    return one_tensor("FSDP(" + std::to_string(ranks) + ")", ranks, shape, Layout::chunk(0, ranks)).job;
  };
  for (const auto& [a, b] : {std::pair{4, 2}, {4, 3}, {4, 8}, {8, 6}, {8, 7}}) {
    BOOST_TEST_CONTEXT(a << " and " << b) {
      BOOST_TEST(reshard(fsdp(a), fsdp(b)) == 25 * 6 * item);
      BOOST_TEST(reshard(fsdp(b), fsdp(a)) == 25 * 6 * item);
    }
  }
}

BOOST_AUTO_TEST_CASE(shapes_chunked_over_two) {
  for (const Extents& shape : {Extents{1, 6}, Extents{12}, Extents{12, 6}, Extents{25}, Extents{25, 6}}) {
    check_each_into_each({one_tensor("FSDP(2)", 2, shape, Layout::chunk(0, 2)),
                          one_tensor("FSDP(3)", 3, shape, Layout::chunk(0, 3)),
                          one_tensor("replicated", 2, shape, Layout::replicated())});
  }
  const JobLayout one = one_tensor("FSDP(2)", 2, {1}, Layout::chunk(0, 2)).job;
  BOOST_TEST(Planner(one, one).plan(Rank{0}).pieces.empty());  // one-element tensors go by value
}

BOOST_AUTO_TEST_CASE(a_small_model_under_each_parallelism) {
  std::vector<Side> sides;
  const auto add = [&](const std::string& name, int ranks,
                       const std::function<Layout(const Parameter&, std::size_t)>& of) {
    sides.push_back(mlp_with(name, ranks, of));
  };
  add("FSDP(4)", 4, [](const Parameter&, std::size_t) { return Layout::chunk(0, 4); });
  add("HSDP(2x2)", 4, [](const Parameter&, std::size_t) { return Layout::mesh({2, 2}, {Replicate{}, Shard{0}}); });
  add("FSDP(2) x TP(2)", 4, [](const Parameter& parameter, std::size_t i) {
    if (parameter.shape.size() == 1) return Layout::mesh({2, 2}, {Shard{0}, Replicate{}});
    if (i / 2 % 2 == 1) return Layout::mesh({2, 2}, {Shard{0}, Shard{1}});
    return Layout::mesh({2, 2}, {StridedShard{0, 2}, Shard{0}}, MeshOrder::tp_first);
  });
  sides.push_back(mlp_flat("flat(3)", 3, 0, false));
  sides.push_back(mlp_flat("flat(4) aligned", 4, 8, false));
  sides.push_back(mlp_flat("flat(2) over TP(2)", 2, 4, true));
  add("blockcyclic", 4, [](const Parameter& parameter, std::size_t) {
    return parameter.shape.size() == 1 ? Layout::block_cyclic({3}, {4}) : Layout::block_cyclic({2, 3}, {2, 2}, {1, 0});
  });
  add("FSDP within TP", 4,
      [](const Parameter&, std::size_t) { return Layout::within(Layout::chunk(0, 2), 2, Layout::chunk(0, 2)); });
  check_each_into_each(sides);
}

BOOST_AUTO_TEST_CASE(random_layouts_of_every_kind_into_each_other) {
  const std::uint64_t seed = test::seed();
  ByteCount bytes = 0;
  for (std::uint64_t round = 0; round < test::rounds(std::uint64_t{3000}); ++round) {
    BOOST_TEST_CONTEXT("TEST_SEED=" << seed << " round " << round) {
      test::Random random(seed + round * 1'000'003);
      const Extents shape = test::random_shape(random);
      if (volume_of(shape) == 1) continue;  // such a tensor goes by value
      const int ranks = test::pick(random, 1, 8);
      const Layout layout = test::random_layout(random, shape, ranks);
      // The union of the ranks' holdings; a target of another layout wants at most that.
      const JobLayout held = one_tensor("held", ranks, shape, layout).job;
      const JobLayout whole = one_tensor("whole", 2, shape, Layout::mesh({1}, {Replicate{}})).job;
      const int others = test::pick(random, 1, 8);
      const JobLayout other = one_tensor("other", others, shape, test::random_layout(random, shape, others)).job;
      bytes += reshard(whole, held) + reshard(whole, other);
      if (has_all(held, other)) bytes += reshard(held, other);
    }
  }
  BOOST_TEST(bytes > 100'000U);
}

BOOST_AUTO_TEST_SUITE_END()
