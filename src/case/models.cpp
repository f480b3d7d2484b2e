// SPDX-License-Identifier: Apache-2.0
#include "case/models.hpp"

#include <fmt/format.h>

namespace shardwire {
namespace {

constexpr Extent llama_kv_width = 1024;  // 8 heads of 128, in all three sizes

std::vector<CaseTensor> llama_layer(const Model& model, int) {
  const Extent d = model.width;
  return {
      {"input_layernorm.weight", {d}, "rep"},
      {"self_attn.q_proj.weight", {d, d}, "row"},
      {"self_attn.k_proj.weight", {llama_kv_width, d}, "row"},
      {"self_attn.v_proj.weight", {llama_kv_width, d}, "row"},
      {"self_attn.o_proj.weight", {d, d}, "col"},
      {"post_attention_layernorm.weight", {d}, "rep"},
      {"mlp.gate_proj.weight", {model.hidden, d}, "row"},
      {"mlp.up_proj.weight", {model.hidden, d}, "row"},
      {"mlp.down_proj.weight", {d, model.hidden}, "col"},
  };
}

constexpr int deepseek_dense_layers = 3;
constexpr int deepseek_experts = 256;
constexpr Extent deepseek_expert_hidden = 2048;

std::vector<CaseTensor> deepseek_layer(const Model& model, int index) {
  const Extent d = model.width;
  std::vector<CaseTensor> tensors = {
      {"input_layernorm.weight", {d}, "rep"},
      {"self_attn.q_a_proj.weight", {1536, d}, "rep"},
      {"self_attn.q_a_layernorm.weight", {1536}, "rep"},
      {"self_attn.q_b_proj.weight", {24576, 1536}, "row"},
      {"self_attn.kv_a_proj_with_mqa.weight", {576, d}, "rep"},
      {"self_attn.kv_a_layernorm.weight", {512}, "rep"},
      {"self_attn.kv_b_proj.weight", {32768, 512}, "row"},
      {"self_attn.o_proj.weight", {d, 16384}, "col"},
      {"post_attention_layernorm.weight", {d}, "rep"},
  };
  const auto add_feed_forward = [&](const std::string& prefix, Extent hidden, const char* in, const char* out) {
    tensors.push_back({prefix + "gate_proj.weight", {hidden, d}, in});
    tensors.push_back({prefix + "up_proj.weight", {hidden, d}, in});
    tensors.push_back({prefix + "down_proj.weight", {d, hidden}, out});
  };
  if (index < deepseek_dense_layers) {
    add_feed_forward("mlp.", model.hidden, "row", "col");
    return tensors;
  }
  tensors.push_back({"mlp.gate.weight", {deepseek_experts, d}, "rep"});
  tensors.push_back({"mlp.gate.e_score_correction_bias", {deepseek_experts}, "rep"});
  for (int expert = 0; expert < deepseek_experts; ++expert) {
    add_feed_forward(fmt::format("mlp.experts.{}.", expert), deepseek_expert_hidden, "expert", "expert");
  }
  add_feed_forward("mlp.shared_experts.", deepseek_expert_hidden, "row", "col");
  return tensors;
}

constexpr Model models[] = {
    {"llama3-8b", 32, llama_layer, 128256, 4096, 14336},
    {"llama3-70b", 80, llama_layer, 128256, 8192, 28672},
    {"llama3-405b", 126, llama_layer, 128256, 16384, 53248},
    {"deepseek-v3", 61, deepseek_layer, 129280, 7168, 18432},
};

}  // namespace

const Model* find_model(std::string_view name) {
  for (const Model& model : models) {
    if (model.name == name) return &model;
  }
  return nullptr;
}

std::string model_names() {
  std::string names;
  for (const Model& model : models) names += fmt::format("{}{}", names.empty() ? "" : ", ", model.name);
  return names;
}

std::vector<CaseTensor> tensors_of(const Model& model, int layers, bool embeddings) {
  std::vector<CaseTensor> tensors;
  if (embeddings) tensors.push_back({"model.embed_tokens.weight", {model.vocabulary, model.width}, "row", -1});
  for (int index = 0; index < layers; ++index) {
    for (CaseTensor& tensor : model.layer(model, index)) {
      tensor.layer = index;
      tensor.fqn = fmt::format("model.layers.{}.{}", index, tensor.fqn);
      tensors.push_back(std::move(tensor));
    }
  }
  if (embeddings) {
    tensors.push_back({"model.norm.weight", {model.width}, "rep", layers});
    tensors.push_back({"lm_head.weight", {model.vocabulary, model.width}, "row", layers});
  }
  return tensors;
}

}  // namespace shardwire
