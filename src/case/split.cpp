// SPDX-License-Identifier: Apache-2.0
#include "case/split.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>

namespace shardwire {
namespace {

// The module whose weight is split. `transposed`: its weight is (in, out), as in GPT-2.
struct SplitModule {
  std::string_view name;  ///< its last steps
  bool by_output;
  bool transposed = false;
  int parts = 1;
};

constexpr SplitModule split_modules[] = {
    {"embed_tokens", true},
    {"lm_head", true},
    {"q_proj", true},
    {"k_proj", true},
    {"v_proj", true},
    {"o_proj", false},
    {"q_b_proj", true},
    {"kv_b_proj", true},
    {"gate_proj", true},
    {"up_proj", true},
    {"down_proj", false},
    // Mixtral
    {"w1", true},
    {"w3", true},
    {"w2", false},
    // GPT-2
    {"wte", true},
    {"c_attn", true, true, 3},
    {"c_fc", true, true},
    {"c_proj", false, true},
    // GPT-NeoX, BLOOM, Falcon
    {"embed_in", true},
    {"embed_out", true},
    {"word_embeddings", true},
    {"query_key_value", true},
    {"attention.dense", false},
    {"self_attention.dense", false},
    {"dense_h_to_4h", true},
    {"dense_4h_to_h", false},
    // OPT, Phi
    {"out_proj", false},
    {"self_attn.dense", false},
    {"fc1", true},
    {"fc2", false},
};

bool take_end(std::string_view& text, std::string_view end) {
  if (!text.ends_with(end)) return false;
  text.remove_suffix(end.size());
  return true;
}

std::string_view last_step(std::string_view name) {
  return name.substr(name.rfind('.') + 1);  // npos + 1 is 0
}

bool ends_with_steps(std::string_view name, std::string_view steps) {
  return take_end(name, steps) && (name.empty() || name.back() == '.');
}

int expert_of(std::string_view fqn) {
  constexpr std::string_view step = ".experts.";
  constexpr int most = 1 << 20;
  const std::size_t at = fqn.find(step);
  int expert = -1;
  if (at != std::string_view::npos) std::from_chars(fqn.data() + at + step.size(), fqn.data() + fqn.size(), expert);
  return expert <= most ? expert : -1;
}

}  // namespace

bool is_vision(std::string_view fqn) {
  const auto is_under = [&](std::string_view module) {
    const std::size_t at = fqn.find(module);
    return at != std::string_view::npos && (at == 0 || fqn[at - 1] == '.');
  };
  return is_under("vision_tower.") || is_under("vision_model.");
}

Split split_of(std::string_view fqn) {
  if (is_vision(fqn)) return {};
  Split split{.expert = expert_of(fqn)};
  const bool bias = take_end(fqn, ".bias");
  if (!bias && !take_end(fqn, ".weight")) return split;
  const auto* const found = std::find_if(std::begin(split_modules), std::end(split_modules),
                                         [&](const SplitModule& one) { return ends_with_steps(fqn, one.name); });
  if (found == std::end(split_modules) || (bias && !found->by_output)) return split;
  split.dim = bias || found->by_output != found->transposed ? 0 : 1;
  split.parts = found->parts;
  return split;
}

bool is_embedding(std::string_view fqn) {
  take_end(fqn, ".weight");
  const std::string_view step = last_step(fqn);
  return step == "lm_head" || step == "wte" || step == "wpe" || step.find("embed") != std::string_view::npos;
}

}  // namespace shardwire
