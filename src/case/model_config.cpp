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
#include "support/nearest.hpp"

namespace shardwire {
namespace {

constexpr std::size_t max_config_bytes = 1u << 20;
constexpr Extent max_size = Extent{1} << 30;  // products of two, and of one and a sum of two, fit 63 bits
constexpr Extent max_layers = 1024;
constexpr Extent max_experts = 1024;

// Fields of one config whose names are near to one another: none of them is another one misspelt.
constexpr std::string_view near_fields[] = {"intermediate_size", "moe_intermediate_size", "q_lora_rank",
                                            "kv_lora_rank",      "qk_nope_head_dim",      "qk_rope_head_dim"};

// The fields of a config; null is the same as absent.
class Config {
 public:
  explicit Config(const Node& root) : root_(root) {}

  [[nodiscard]] std::optional<Node> find(const char* field) const {
    const auto found = root_.find(field);
    return found && found->json().is_null() ? std::nullopt : found;
  }
  [[nodiscard]] Node part(const char* field) const {
    if (const auto found = find(field)) return *found;
    refuse_missing(field);
  }
  [[nodiscard]] Extent size(const char* field) const { return part(field).integer(1, max_size); }
  [[nodiscard]] Extent size(const char* field, Extent otherwise) const { return find(field) ? size(field) : otherwise; }
  [[nodiscard]] int count(const char* field, Extent most) const {
    return static_cast<int>(part(field).integer(1, most));
  }
  [[nodiscard]] int count(const char* field, Extent most, int otherwise) const {
    return find(field) ? static_cast<int>(root_.at(field).integer(0, most)) : otherwise;
  }
  /// The second name, if the first one is not there.
  [[nodiscard]] const char* either(const char* first, const char* second) const { return find(first) ? first : second; }
  [[nodiscard]] bool flag(const char* field, bool otherwise) const {
    return find(field) ? root_.at(field).boolean() : otherwise;
  }

 private:
  // Fields that are not known are normal in a config, so only one in place of a missing one is worth a word.
  [[noreturn]] void refuse_missing(const char* field) const {
    std::vector<std::string_view> others;
    for (const auto& [name, value] : root_.json().items()) {
      if (name != field && std::ranges::find(near_fields, name) == std::end(near_fields)) others.push_back(name);
    }
    const std::string_view near = support::nearest(field, others);
    root_.refuse(fmt::format("the field '{}' is missing{}", field,
                             near.empty() ? "" : fmt::format(" (did you misspell it as '{}'?)", near)));
  }
  const Node& root_;
};

void read_common(const Config& config, Model& model) {
  model.layers = config.count("num_hidden_layers", max_layers);
  model.vocabulary = config.size("vocab_size");
  model.width = config.size("hidden_size");
  model.hidden = config.size("intermediate_size");
  model.tied = config.flag("tie_word_embeddings", false);
}

void read_sizes(const Config& config, Model& model, Extent head_dim = 0) {
  read_common(config, model);
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
  read_sizes(config, model);
  read_biases(config, model);
  model.mlp_bias = config.flag("mlp_bias", false);
}

void read_mistral(const Config& config, Model& model) {
  read_sizes(config, model);
}

void read_mixtral(const Config& config, Model& model) {
  read_sizes(config, model);
  model.experts = {.count = config.count("num_local_experts", max_experts), .hidden = model.hidden, .mixtral = true};
}

void read_qwen2(const Config& config, Model& model) {
  read_sizes(config, model);
  model.qkv_bias = true;
}

void read_qwen3(const Config& config, Model& model) {
  read_sizes(config, model, 128);
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
  read_sizes(config, model);
  model.qkv_bias = config.flag("qkv_bias", true);
  read_qwen_experts(config, model);
  model.experts.shared = "shared_expert";
  model.experts.shared_hidden = config.size("shared_expert_intermediate_size");
  model.experts.shared_gate = true;
}

void read_qwen3_moe(const Config& config, Model& model) {
  read_sizes(config, model);
  read_biases(config, model);
  model.head_norms = true;
  read_qwen_experts(config, model);
}

void read_deepseek(const Config& config, Model& model) {
  read_common(config, model);
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
  read_sizes(config, model, 256);
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

// The library leaves out the fields of an inner config that have the default of its class.
Json with_defaults(Json fields, const Node& given) {
  given.require_object();
  for (const auto& [name, value] : given.json().items()) {
    if (!value.is_null()) fields[name] = value;
  }
  return fields;
}

void read_vision(const Config& config, Vision& vision) {
  vision.layers = config.count("num_hidden_layers", max_layers);
  vision.width = config.size("hidden_size");
  vision.hidden = config.size("intermediate_size");
  vision.channels = config.size("num_channels");
  vision.patch = config.size("patch_size");
  const Extent side = config.size("image_size") / vision.patch;
  vision.patches = side * side;
}

void read_gemma3_with_vision(const Config& config, Model& model) {
  const Node given = config.part("text_config");
  const Json fields = with_defaults({{"num_hidden_layers", 26},
                                     {"hidden_size", 2304},
                                     {"intermediate_size", 9216},
                                     {"num_attention_heads", 8},
                                     {"num_key_value_heads", 4},
                                     {"vocab_size", 262208}},
                                    given);
  const Node text(fields, given.place());
  read_gemma3(Config(text), model);
  model.tied = config.flag("tie_word_embeddings", model.tied);  // version 5 of the library writes it here
  model.prefix = "language_model.";
  const Node given_vision = config.part("vision_config");
  const Json vision_fields = with_defaults({{"num_hidden_layers", 12},
                                            {"hidden_size", 768},
                                            {"intermediate_size", 3072},
                                            {"num_channels", 3},
                                            {"patch_size", 16},
                                            {"image_size", 224},
                                            {"vision_use_head", true}},
                                           given_vision);
  const Node vision(vision_fields, given_vision.place());
  if (Config(vision).flag("vision_use_head", true)) {
    given_vision.refuse("only models without a head of vision are known: \"vision_use_head\" must be false");
  }
  read_vision(Config(vision), model.vision);
}

void read_gpt2(const Config& config, Model& model) {
  if (config.flag("add_cross_attention", false)) {
    config.part("add_cross_attention").refuse("only models without cross-attention are known: it must be false");
  }
  model.layers = config.count("n_layer", max_layers);
  model.vocabulary = config.size("vocab_size");
  model.width = config.size("n_embd");
  model.hidden = config.size("n_inner", 4 * model.width);
  model.positions = config.size("n_positions");
  model.qkv_width = 3 * model.width;
  model.tied = config.flag("tie_word_embeddings", true);
}

void read_heads(const Config& config, const char* field, Model& model) {
  model.heads = config.size(field);
  if (model.width % model.heads != 0) {
    config.part(field).refuse(fmt::format("{} does not divide the width, {}", model.heads, model.width));
  }
  model.head_dim = model.width / model.heads;
}

// Of one head, if all query heads share its keys and values.
void read_one_kv_head(Model& model) {
  model.kv_heads = 1;
  model.qkv_width = model.width + 2 * model.head_dim;
}

void read_gpt_bigcode(const Config& config, Model& model) {
  read_gpt2(config, model);
  read_heads(config, "n_head", model);
  if (config.flag("multi_query", true)) read_one_kv_head(model);
}

void read_gpt_neox(const Config& config, Model& model) {
  read_common(config, model);
  model.qkv_width = 3 * model.width;
  model.qkv_bias = model.output_bias = config.flag("attention_bias", true);
  model.mlp_bias = true;
  model.norms = {"input_layernorm", "post_attention_layernorm"};
}

void read_bloom(const Config& config, Model& model) {
  model.layers = config.count(config.either("n_layer", "num_hidden_layers"), max_layers);
  model.vocabulary = config.size("vocab_size");
  model.width = config.size(config.either("n_embed", "hidden_size"));
  model.hidden = 4 * model.width;
  model.qkv_width = 3 * model.width;
  model.qkv_bias = model.output_bias = model.mlp_bias = true;
  model.tied = config.flag("tie_word_embeddings", true);
  model.norms = {"input_layernorm", "post_attention_layernorm"};
}

void read_falcon(const Config& config, Model& model) {
  model.layers = config.count("num_hidden_layers", max_layers);
  model.vocabulary = config.size("vocab_size");
  model.width = config.size("hidden_size");
  model.hidden = config.size("ffn_hidden_size", 4 * model.width);
  read_heads(config, "num_attention_heads", model);
  model.qkv_bias = model.output_bias = model.mlp_bias = config.flag("bias", false);
  model.tied = config.flag("tie_word_embeddings", true);
  const bool grouped = config.flag("new_decoder_architecture", false);
  if (grouped) {
    model.kv_heads = config.size("num_kv_heads", model.heads);
    model.qkv_width = (model.heads + 2 * model.kv_heads) * model.head_dim;
  } else if (config.flag("multi_query", true)) {
    read_one_kv_head(model);
  } else {
    model.qkv_width = 3 * model.width;
  }
  if (!config.flag("parallel_attn", true)) {
    model.norms = {"input_layernorm", "post_attention_layernorm"};
  } else if (config.count("num_ln_in_parallel_attn", 2, grouped ? 2 : 1) == 2) {
    model.norms = {"ln_attn", "ln_mlp"};
  } else {
    model.norms = {"input_layernorm"};
  }
}

void read_opt(const Config& config, Model& model) {
  model.layers = config.count("num_hidden_layers", max_layers);
  model.vocabulary = config.size("vocab_size");
  model.width = config.size("hidden_size");
  model.hidden = config.size("ffn_dim");
  model.embedding_width = config.size("word_embed_proj_dim", model.width);
  model.positions = config.size("max_position_embeddings") + 2;  // the first two are for padding
  model.qkv_bias = model.mlp_bias = config.flag("enable_bias", true);
  model.tied = config.flag("tie_word_embeddings", true);
  const bool with_weights = config.flag("layer_norm_elementwise_affine", true);
  if (with_weights) model.norms = {"self_attn_layer_norm", "final_layer_norm"};
  model.final_norm =
      with_weights && config.flag("do_layer_norm_before", true) && !config.flag("_remove_final_layer_norm", false);
}

void read_phi(const Config& config, Model& model) {
  read_sizes(config, model);
  model.head_norms = config.flag("qk_layernorm", false);
}

struct Architecture {
  std::string_view name;  ///< model_type
  void (*read)(const Config& config, Model& model);
  Family family = Family::llama;
};

// Another architecture of this kind needs a line here, and names and shapes of its own in models.cpp or gpt_models.cpp.
constexpr Architecture architectures[] = {
    {"llama", read_llama},
    {"mistral", read_mistral},
    {"mixtral", read_mixtral},
    {"qwen2", read_qwen2},
    {"qwen3", read_qwen3},
    {"qwen2_moe", read_qwen2_moe},
    {"qwen3_moe", read_qwen3_moe},
    {"deepseek_v2", read_deepseek},
    {"deepseek_v3", read_deepseek_v3},
    {"gemma", read_gemma},
    {"gemma2", read_gemma2},
    {"gemma3_text", read_gemma3},
    {"gemma3", read_gemma3_with_vision},
    {"gpt2", read_gpt2, Family::gpt2},
    {"gpt_bigcode", read_gpt_bigcode, Family::gpt_bigcode},
    {"gpt_neox", read_gpt_neox, Family::gpt_neox},
    {"bloom", read_bloom, Family::bloom},
    {"falcon", read_falcon, Family::falcon},
    {"opt", read_opt, Family::opt},
    {"phi", read_phi, Family::phi},
};

Model model_of(const Node& root) {
  root.require_object();
  const Node type = Config(root).part("model_type");
  const std::string name = type.text();
  const auto* const found = std::ranges::find(architectures, name, &Architecture::name);
  if (found == std::end(architectures)) {
    std::vector<std::string_view> known;
    for (const Architecture& one : architectures) known.push_back(one.name);
    type.refuse_unknown("architecture", name, fmt::format("{}", fmt::join(known, ", ")));
  }
  Model model{.name = name, .family = found->family};
  found->read(Config(root), model);
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
