// SPDX-License-Identifier: Apache-2.0
#include "case/models.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "case/gpt_models.hpp"
#include "case/layer_tensors.hpp"

namespace shardwire {
namespace {

void add_attention(const Model& model, LayerTensors& layer) {
  const Extent d = model.width;
  layer.add_linear("self_attn.q_proj", model.heads * model.head_dim, d, model.qkv_bias);
  layer.add_linear("self_attn.k_proj", model.kv_heads * model.head_dim, d, model.qkv_bias);
  layer.add_linear("self_attn.v_proj", model.kv_heads * model.head_dim, d, model.qkv_bias);
  layer.add_linear("self_attn.o_proj", d, model.heads * model.head_dim, model.output_bias);
  if (!model.head_norms) return;
  layer.add_norm("self_attn.q_norm", model.head_dim);
  layer.add_norm("self_attn.k_norm", model.head_dim);
}

void add_latent_attention(const Model& model, LayerTensors& layer) {
  const Latent& latent = model.latent;
  const Extent d = model.width;
  const Extent queries = model.heads * (latent.plain_dim + latent.rope_dim);
  if (latent.query_rank == 0) {
    layer.add_linear("self_attn.q_proj", queries, d);
  } else {
    layer.add_linear("self_attn.q_a_proj", latent.query_rank, d, model.qkv_bias);
    layer.add_norm("self_attn.q_a_layernorm", latent.query_rank);
    layer.add_linear("self_attn.q_b_proj", queries, latent.query_rank);
  }
  layer.add_linear("self_attn.kv_a_proj_with_mqa", latent.kv_rank + latent.rope_dim, d, model.qkv_bias);
  layer.add_norm("self_attn.kv_a_layernorm", latent.kv_rank);
  layer.add_linear("self_attn.kv_b_proj", model.heads * (latent.plain_dim + latent.value_dim), latent.kv_rank);
  layer.add_linear("self_attn.o_proj", d, model.heads * latent.value_dim, model.output_bias);
}

void add_feed_forward(const Model& model, LayerTensors& layer, const std::string& prefix, Extent hidden,
                      bool bias = false) {
  layer.add_linear(prefix + "gate_proj", hidden, model.width, bias);
  layer.add_linear(prefix + "up_proj", hidden, model.width, bias);
  layer.add_linear(prefix + "down_proj", model.width, hidden, bias);
}

void add_experts(const Model& model, LayerTensors& layer) {
  const Experts& experts = model.experts;
  const std::string place = experts.mixtral ? "block_sparse_moe." : "mlp.";
  layer.add_linear(place + "gate", experts.count, model.width);
  if (experts.correction_bias) layer.add(place + "gate.e_score_correction_bias", {experts.count});
  for (int expert = 0; expert < experts.count; ++expert) {
    const std::string prefix = fmt::format("{}experts.{}.", place, expert);
    if (!experts.mixtral) {
      add_feed_forward(model, layer, prefix, experts.hidden);
      continue;
    }
    layer.add_linear(prefix + "w1", experts.hidden, model.width);
    layer.add_linear(prefix + "w2", model.width, experts.hidden);
    layer.add_linear(prefix + "w3", experts.hidden, model.width);
  }
  if (experts.shared_hidden == 0) return;
  add_feed_forward(model, layer, place + experts.shared + ".", experts.shared_hidden);
  if (experts.shared_gate) layer.add_linear(place + experts.shared + "_gate", 1, model.width);
}

std::vector<CaseTensor> layer_of(const Model& model, int index) {
  LayerTensors layer(fmt::format("{}model.layers.{}.", model.prefix, index), index);
  layer.add_norm("input_layernorm", model.width);
  model.latent.kv_rank == 0 ? add_attention(model, layer) : add_latent_attention(model, layer);
  layer.add_norm("post_attention_layernorm", model.width);
  if (model.outer_norms) {
    layer.add_norm("pre_feedforward_layernorm", model.width);
    layer.add_norm("post_feedforward_layernorm", model.width);
  }
  const std::vector<int>& dense = model.experts.dense_layers;
  if (model.experts.count == 0 || std::ranges::find(dense, index) != dense.end()) {
    add_feed_forward(model, layer, "mlp.", model.hidden, model.mlp_bias);
  } else {
    add_experts(model, layer);
  }
  return layer.take();
}

std::vector<CaseTensor> tensors_of_vision(const Model& model) {
  const Vision& vision = model.vision;
  const Extent d = vision.width;
  LayerTensors all("", -1);
  all.add("vision_tower.vision_model.embeddings.patch_embedding.weight",
          {d, vision.channels, vision.patch, vision.patch});
  all.add("vision_tower.vision_model.embeddings.patch_embedding.bias", {d});
  all.add("vision_tower.vision_model.embeddings.position_embedding.weight", {vision.patches, d});
  for (int index = 0; index < vision.layers; ++index) {
    const std::string layer = fmt::format("vision_tower.vision_model.encoder.layers.{}.", index);
    all.add_norm(layer + "layer_norm1", d, true);
    for (const char* const name : {"k_proj", "v_proj", "q_proj", "out_proj"}) {
      all.add_linear(fmt::format("{}self_attn.{}", layer, name), d, d, true);
    }
    all.add_norm(layer + "layer_norm2", d, true);
    all.add_linear(layer + "mlp.fc1", vision.hidden, d, true);
    all.add_linear(layer + "mlp.fc2", d, vision.hidden, true);
  }
  all.add_norm("vision_tower.vision_model.post_layernorm", d, true);
  all.add("multi_modal_projector.mm_input_projection_weight", {d, model.width});
  all.add_norm("multi_modal_projector.mm_soft_emb_norm", d);
  return all.take();
}

std::vector<CaseTensor> before_layers(const Model& model) {
  LayerTensors all(model.prefix + "model.", -1);
  all.add("embed_tokens.weight", {model.vocabulary, model.width});
  return all.take();
}

std::vector<CaseTensor> after_layers(const Model& model, int layers) {
  LayerTensors all(model.prefix, layers);
  all.add_norm("model.norm", model.width);
  if (!model.tied) all.add_linear("lm_head", model.vocabulary, model.width);
  return all.take();
}

Model llama3(std::string name, int layers, Extent width, Extent hidden) {
  return {.name = std::move(name),
          .layers = layers,
          .vocabulary = 128256,
          .width = width,
          .hidden = hidden,
          .heads = width / 128,
          .kv_heads = 8,
          .head_dim = 128};
}

Model deepseek_v3() {
  Model model{.name = "deepseek-v3", .layers = 61, .vocabulary = 129280, .width = 7168, .hidden = 18432, .heads = 128};
  model.latent = {.query_rank = 1536, .kv_rank = 512, .plain_dim = 128, .rope_dim = 64, .value_dim = 128};
  model.experts = {.count = 256,
                   .hidden = 2048,
                   .correction_bias = true,
                   .shared = "shared_experts",
                   .shared_hidden = 2048,
                   .dense_layers = {0, 1, 2}};
  return model;
}

const std::vector<Model>& models() {
  static const std::vector<Model> all{
      llama3("llama3-8b", 32, 4096, 14336),
      llama3("llama3-70b", 80, 8192, 28672),
      llama3("llama3-405b", 126, 16384, 53248),
      deepseek_v3(),
  };
  return all;
}

}  // namespace

const Model* find_model(std::string_view name) {
  const auto found = std::ranges::find(models(), name, &Model::name);
  return found == models().end() ? nullptr : &*found;
}

std::string model_names() {
  std::string names;
  for (const Model& model : models()) names += fmt::format("{}{}", names.empty() ? "" : ", ", model.name);
  return names;
}

std::vector<CaseTensor> tensors_of(const Model& model, int layers, bool embeddings) {
  if (model.family != Family::llama) return tensors_of_gpt(model, layers, embeddings);
  std::vector<CaseTensor> tensors;
  const auto append = [&](std::vector<CaseTensor> more) { std::ranges::move(more, std::back_inserter(tensors)); };
  if (embeddings && model.vision.layers > 0) append(tensors_of_vision(model));
  if (embeddings) append(before_layers(model));
  for (int index = 0; index < layers; ++index) append(layer_of(model, index));
  if (embeddings) append(after_layers(model, layers));
  return tensors;
}

}  // namespace shardwire
