// SPDX-License-Identifier: Apache-2.0
// Whole-job totals of public model shapes, compared with figures computed by other programs.
#include <boost/test/unit_test.hpp>

#include <string>

#include "shardwire/plan.hpp"

BOOST_AUTO_TEST_SUITE(models)

namespace {

using namespace shardwire;

struct Rules {
  Layout row;
  Layout col;
  Layout rep;
};

Rules all(const Layout& layout) {
  return {layout, layout, layout};
}

struct ModelSize {
  int layers;
  Extent width;
  Extent hidden;
};

constexpr ModelSize llama3_8b{32, 4096, 14336};
constexpr ModelSize llama3_70b{80, 8192, 28672};

JobLayout llama(const ModelSize& model, int ranks, const Rules& rules) {
  std::vector<TensorLayout> tensors;
  const auto add = [&](const std::string& fqn, const Extents& shape, const Layout& layout) {
    for (const char* state : {"master", "exp_avg", "exp_avg_sq"}) {
      tensors.push_back({{{fqn, state}, DType::f32, shape}, layout});
    }
  };
  const Extent d = model.width;
  add("model.embed_tokens.weight", {128256, d}, rules.row);
  for (int layer = 0; layer < model.layers; ++layer) {
    const std::string at = std::string("model.layers.").append(std::to_string(layer)).append(".");
    add(at + "input_layernorm.weight", {d}, rules.rep);
    add(at + "self_attn.q_proj.weight", {d, d}, rules.row);
    add(at + "self_attn.k_proj.weight", {1024, d}, rules.row);
    add(at + "self_attn.v_proj.weight", {1024, d}, rules.row);
    add(at + "self_attn.o_proj.weight", {d, d}, rules.col);
    add(at + "post_attention_layernorm.weight", {d}, rules.rep);
    add(at + "mlp.gate_proj.weight", {model.hidden, d}, rules.row);
    add(at + "mlp.up_proj.weight", {model.hidden, d}, rules.row);
    add(at + "mlp.down_proj.weight", {d, model.hidden}, rules.col);
  }
  add("model.norm.weight", {d}, rules.rep);
  add("lm_head.weight", {128256, d}, rules.row);
  return JobLayout::uniform(ranks, std::move(tensors));
}

JobLayout fsdp(const ModelSize& model, int ranks) {
  return llama(model, ranks, all(Layout::chunk(0, ranks)));
}

JobLayout fsdp_tp(const ModelSize& model, int dp, int tp) {
  return llama(model, dp * tp,
               {Layout::mesh({dp, tp}, {StridedShard{0, tp}, Shard{0}}, MeshOrder::tp_first),
                Layout::mesh({dp, tp}, {Shard{0}, Shard{1}}), Layout::mesh({dp, tp}, {Shard{0}, Replicate{}})});
}

struct Totals {
  double mean_pieces = 0;
  double remote_percent = 0;
  double mean_runs = 0;
  ByteCount needed = 0;
};

// A wanted box of these layouts has no more than one held box per source, so boxes_of(..)[0] is the one.
Totals totals_of(const JobLayout& from, const JobLayout& to, bool with_runs) {
  Planner planner(from, to);
  Totals totals;
  ByteCount remote = 0;
  std::size_t pieces = 0;
  ElementCount runs = 0;
  int holding = 0;
  for (int target = 0; target < to.ranks; ++target) {
    const Plan plan = planner.plan(Rank{target});
    const Schedule schedule = planner.schedule(plan);
    BOOST_TEST(schedule.items.size() >= plan.pieces.size());
    pieces += plan.pieces.size();
    holding += plan.pieces.empty() ? 0 : 1;
    for (const ScheduledPiece& item : schedule.items) {
      const Piece& piece = plan.pieces[item.piece];
      const TensorLayout& wanted = plan.wanted->tensors[to_index(piece.tensor)];
      const ByteCount bytes = static_cast<ByteCount>(schedule.box(item).volume()) * item_size(wanted.spec.dtype);
      totals.needed += bytes;
      if (item.source != plan.target) remote += bytes;
      if (!with_runs) continue;
      const TensorLayout& held = from.sections[item.section].manifest->tensors[to_index(item.held)];
      runs += runs_of(schedule.box(item), held.layout.boxes_of(held.spec.shape, item.source)[0],
                      wanted.layout.boxes_of(wanted.spec.shape, plan.target)[0]);
    }
  }
  totals.mean_pieces = static_cast<double>(pieces) / holding;
  totals.mean_runs = static_cast<double>(runs) / holding;
  totals.remote_percent = 100.0 * static_cast<double>(remote) / static_cast<double>(totals.needed);
  return totals;
}

constexpr ByteCount bytes_8b = ByteCount{8'030'261'248} * 12;

}  // namespace

BOOST_AUTO_TEST_CASE(fewer_ranks_of_the_8b_model) {
  const Totals totals = totals_of(fsdp(llama3_8b, 8), fsdp(llama3_8b, 6), true);
  BOOST_TEST(totals.needed == bytes_8b);
  BOOST_TEST(std::abs(totals.mean_pieces - 1890) <= 0.5);
  BOOST_TEST(std::abs(totals.mean_runs - 1890) <= 0.5);
  BOOST_TEST(std::abs(totals.remote_percent - 75.02) < 0.005);
}

BOOST_AUTO_TEST_CASE(more_ranks_of_the_8b_model) {
  const Totals totals = totals_of(fsdp(llama3_8b, 8), fsdp(llama3_8b, 16), true);
  BOOST_TEST(totals.needed == bytes_8b);
  BOOST_TEST(std::abs(totals.mean_pieces - 873) < 0.5);
  BOOST_TEST(std::abs(totals.mean_runs - 873) < 0.5);
  BOOST_TEST(std::abs(totals.remote_percent - 93.75) < 0.005);
}

BOOST_AUTO_TEST_CASE(tensor_parallelism_added_to_the_8b_model) {
  const Totals totals = totals_of(fsdp(llama3_8b, 8), fsdp_tp(llama3_8b, 4, 2), true);
  BOOST_TEST(std::abs(totals.mean_pieces - 1260) < 0.5);
  BOOST_TEST(std::abs(totals.mean_runs - 197'000) < 500);
  BOOST_TEST(std::abs(totals.remote_percent - 67.48) < 0.005);
}

BOOST_AUTO_TEST_CASE(a_thousand_ranks_of_the_70b_model) {
  const Totals totals = totals_of(fsdp(llama3_70b, 1024), fsdp(llama3_70b, 1016), false);
  BOOST_TEST(std::abs(totals.mean_pieces - 3607) < 0.5);
  BOOST_TEST(std::abs(totals.remote_percent - 98.87) < 0.005);
}

BOOST_AUTO_TEST_SUITE_END()
