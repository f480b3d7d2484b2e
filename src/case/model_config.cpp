// SPDX-License-Identifier: Apache-2.0
#include "case/model_config.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

#include "case/case.hpp"
#include "case/json_node.hpp"
#include "case/text_file.hpp"

namespace shardwire {
namespace {

constexpr std::size_t max_config_bytes = 1u << 20;
constexpr Extent max_size = Extent{1} << 30;  // products of two, and of one and a sum of two, fit 63 bits
constexpr Extent max_layers = 1024;
constexpr Extent max_experts = 1024;

// The fields of a config; null is the same as absent.
class Config {
 public:
  explicit Config(const Node& root) : root_(root) {}

  [[nodiscard]] std::optional<Node> find(const char* field) const {
    const auto found = root_.find(field);
    return found && found->json().is_null() ? std::nullopt : found;
  }
  [[nodiscard]] Extent size(const char* field) const {
    return find(field) ? root_.at(field).integer(1, max_size) : missing(field);
  }
  [[nodiscard]] Extent size(const char* field, Extent otherwise) const { return find(field) ? size(field) : otherwise; }
  [[nodiscard]] int count(const char* field, Extent most) const {
    return find(field) ? static_cast<int>(root_.at(field).integer(1, most)) : static_cast<int>(missing(field));
  }
  [[nodiscard]] int count(const char* field, Extent most, int otherwise) const {
    return find(field) ? static_cast<int>(root_.at(field).integer(0, most)) : otherwise;
  }
  [[nodiscard]] bool flag(const char* field, bool otherwise) const {
    return find(field) ? root_.at(field).boolean() : otherwise;
  }

 private:
  [[noreturn]] Extent missing(const char* field) const {
    root_.refuse(fmt::format("the field '{}' is missing", field));
  }
  const Node& root_;
};

void read_attention(const Config& config, Model& model, Extent head_dim = 0) {
  model.heads = config.size("num_attention_heads");
  model.kv_heads = config.size("num_key_value_heads", model.heads);
  const bool even = model.width % model.heads == 0;
  if (head_dim == 0 && even) head_dim = model.width / model.heads;
  model.head_dim = head_dim == 0 ? config.size("head_dim") : config.size("head_dim", head_dim);
}

void read_biases(const Config& config, Model& model) {
  model.qkv_bias = model.output_bias = config.flag("attention_bias", false);
}

void read_llama(const Config& config, Model& model) {
  read_attention(config, model);
  read_biases(config, model);
  model.mlp_bias = config.flag("mlp_bias", false);
}

void read_mistral(const Config& config, Model& model) {
  read_attention(config, model);
}

void read_mixtral(const Config& config, Model& model) {
  read_attention(config, model);
  model.experts = {.count = config.count("num_local_experts", max_experts), .hidden = model.hidden, .mixtral = true};
}

void read_qwen2(const Config& config, Model& model) {
  read_attention(config, model);
  model.qkv_bias = true;
}

void read_qwen3(const Config& config, Model& model) {
  read_attention(config, model, 128);
  read_biases(config, model);
  model.head_norms = true;
}

// Layers are dense if the config lists them, and between those that a step selects.
void read_qwen_experts(const Config& config, Model& model) {
  Experts& experts = model.experts;
  experts.count = config.count("num_experts", max_experts);
  experts.hidden = config.size("moe_intermediate_size");
  const int step = std::max(1, config.count("decoder_sparse_step", max_layers, 1));
  for (int layer = 0; layer < model.layers; ++layer) {
    if ((layer + 1) % step != 0) experts.dense_layers.push_back(layer);
  }
  if (const auto listed = config.find("mlp_only_layers")) {
    for (const Node& layer : listed->elements()) {
      experts.dense_layers.push_back(static_cast<int>(layer.integer(0, max_layers)));
    }
  }
}

void read_qwen2_moe(const Config& config, Model& model) {
  read_attention(config, model);
  model.qkv_bias = config.flag("qkv_bias", true);
  read_qwen_experts(config, model);
  model.experts.shared = "shared_expert";
  model.experts.shared_hidden = config.size("shared_expert_intermediate_size");
  model.experts.shared_gate = true;
}

void read_qwen3_moe(const Config& config, Model& model) {
  read_attention(config, model);
  read_biases(config, model);
  model.head_norms = true;
  read_qwen_experts(config, model);
}

void read_deepseek(const Config& config, Model& model) {
  read_biases(config, model);
  model.heads = config.size("num_attention_heads");
  model.latent = {.query_rank = config.size("q_lora_rank", 0),
                  .kv_rank = config.size("kv_lora_rank"),
                  .plain_dim = config.size("qk_nope_head_dim"),
                  .rope_dim = config.size("qk_rope_head_dim"),
                  .value_dim = config.size("v_head_dim")};
  Experts& experts = model.experts;
  experts.count = config.count("n_routed_experts", max_experts, 0);
  if (experts.count == 0) return;
  experts.hidden = config.size("moe_intermediate_size");
  experts.shared = "shared_experts";
  experts.shared_hidden = config.count("n_shared_experts", max_experts, 0) * experts.hidden;
  const int first = config.count("first_k_dense_replace", max_layers, 0);
  const int step = std::max(1, config.count("moe_layer_freq", max_layers, 1));
  for (int layer = 0; layer < model.layers; ++layer) {
    if (layer < first || layer % step != 0) experts.dense_layers.push_back(layer);
  }
}

void read_deepseek_v3(const Config& config, Model& model) {
  read_deepseek(config, model);
  model.experts.correction_bias = true;
}

void read_gemma(const Config& config, Model& model) {
  read_attention(config, model, 256);
  read_biases(config, model);
  model.tied = config.flag("tie_word_embeddings", true);
}

void read_gemma2(const Config& config, Model& model) {
  read_gemma(config, model);
  model.outer_norms = true;
}

void read_gemma3(const Config& config, Model& model) {
  read_gemma2(config, model);
  model.head_norms = true;
}

void read_common(const Config& config, Model& model) {
  model.layers = config.count("num_hidden_layers", max_layers);
  model.vocabulary = config.size("vocab_size");
  model.width = config.size("hidden_size");
  model.hidden = config.size("intermediate_size");
  model.tied = config.flag("tie_word_embeddings", false);
}

void read_gpt2(const Config& config, Model& model) {
  model.layers = config.count("n_layer", max_layers);
  model.vocabulary = config.size("vocab_size");
  model.width = config.size("n_embd");
  model.hidden = config.size("n_inner", 4 * model.width);
  model.positions = config.size("n_positions");
  model.tied = config.flag("tie_word_embeddings", true);
}

struct Architecture {
  std::string_view name;  ///< model_type
  void (*read)(const Config& config, Model& model);
};

// Another architecture of this kind needs a line here, and names and shapes of its own in models.cpp.
constexpr Architecture architectures[] = {
    {"llama", read_llama},         {"mistral", read_mistral},      {"mixtral", read_mixtral},
    {"qwen2", read_qwen2},         {"qwen3", read_qwen3},          {"qwen2_moe", read_qwen2_moe},
    {"qwen3_moe", read_qwen3_moe}, {"deepseek_v2", read_deepseek}, {"deepseek_v3", read_deepseek_v3},
    {"gemma", read_gemma},         {"gemma2", read_gemma2},        {"gemma3_text", read_gemma3},
    {"gpt2", read_gpt2},
};

Model model_of(const Node& root) {
  const Node type = root.at("model_type");
  const std::string name = type.text();
  const auto* const found = std::ranges::find(architectures, name, &Architecture::name);
  if (found == std::end(architectures)) {
    std::vector<std::string_view> known;
    for (const Architecture& one : architectures) known.push_back(one.name);
    type.refuse_unknown("architecture", name, fmt::format("{}", fmt::join(known, ", ")));
  }
  Model model{.name = name};
  const Config config(root);
  if (found->read != read_gpt2) read_common(config, model);
  found->read(config, model);
  return model;
}

}  // namespace

Model load_model_config(const std::string& path) {
  const std::string text = read_text(path, max_config_bytes);
  try {
    if (text.size() > max_config_bytes) throw CaseError("1:1: a config has at most 1 MiB");
    const Json json = parse_json(text);
    return model_of(Node(json, ""));
  } catch (const CaseError& error) {
    throw CaseError(fmt::format("{}: {}", shown_name(path), error.what()));
  }
}

}  // namespace shardwire
