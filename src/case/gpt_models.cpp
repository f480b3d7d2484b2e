// SPDX-License-Identifier: Apache-2.0
#include "case/gpt_models.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "case/layer_tensors.hpp"
#include "case/split.hpp"

namespace shardwire {
namespace {

// The names of modules that differ between the families.
struct Names {
  std::string_view model;
  std::string_view layers;
  std::string_view embedding;
  std::string_view positions;  ///< empty: no embedding of positions
  std::string_view norm;       ///< after all layers
  std::string_view head = "lm_head";
};

Names names_of(Family family) {
  switch (family) {
    case Family::llama: break;
    case Family::gpt2:
    case Family::gpt_bigcode: return {"transformer.", "h", "wte", "wpe", "ln_f"};
    case Family::gpt_neox: return {"gpt_neox.", "layers", "embed_in", "", "final_layer_norm", "embed_out"};
    case Family::bloom:
    case Family::falcon: return {"transformer.", "h", "word_embeddings", "", "ln_f"};
    case Family::opt: return {"model.decoder.", "layers", "embed_tokens", "embed_positions", "final_layer_norm"};
    case Family::phi: return {"model.", "layers", "embed_tokens", "", "final_layernorm"};
  }
  return {};
}

// The weights of GPT-2 are (in, out). Those of its successor have the same names and are (out, in).
void add_gpt2(const Model& model, LayerTensors& layer) {
  const Extent d = model.width;
  const bool transposed = model.family == Family::gpt2;
  const auto add = [&](const std::string& name, Extent out, Extent in, std::string_view split_as) {
    if (!transposed) return layer.add_linear(name, out, in, true, split_as);
    layer.add(name + ".weight", {in, out});
    layer.add(name + ".bias", {out});
  };
  const bool whole = model.kv_heads == 1;
  layer.add_norm("ln_1", d, true);
  add("attn.c_attn", model.qkv_width, d, whole ? whole_module : "q_proj");
  add("attn.c_proj", d, d, whole ? whole_module : "o_proj");
  layer.add_norm("ln_2", d, true);
  add("mlp.c_fc", model.hidden, d, "up_proj");
  add("mlp.c_proj", d, model.hidden, "down_proj");
}

// Queries, keys and values of a head, or of a group of heads, stand together in one tensor.
void add_fused(const Model& model, LayerTensors& layer) {
  const Extent d = model.width;
  const std::string attention = model.family == Family::gpt_neox ? "attention." : "self_attention.";
  const std::string_view split_as = model.kv_heads == 1 ? whole_module : "";
  for (const std::string_view norm : model.norms) layer.add_norm(std::string(norm), d, true);
  layer.add_linear(attention + "query_key_value", model.qkv_width, d, model.qkv_bias, split_as);
  layer.add_linear(attention + "dense", d, d, model.output_bias, split_as);
  layer.add_linear("mlp.dense_h_to_4h", model.hidden, d, model.mlp_bias);
  layer.add_linear("mlp.dense_4h_to_h", d, model.hidden, model.mlp_bias);
}

void add_opt(const Model& model, LayerTensors& layer) {
  const Extent d = model.width;
  for (const char* const name : {"k_proj", "v_proj", "q_proj", "out_proj"}) {
    layer.add_linear(fmt::format("self_attn.{}", name), d, d, model.qkv_bias);
  }
  layer.add_linear("fc1", model.hidden, d, model.mlp_bias);
  layer.add_linear("fc2", d, model.hidden, model.mlp_bias);
  for (const std::string_view norm : model.norms) layer.add_norm(std::string(norm), d, true);
}

void add_phi(const Model& model, LayerTensors& layer) {
  const Extent d = model.width;
  const Extent kv_width = model.kv_heads * model.head_dim;
  layer.add_norm("input_layernorm", d, true);
  layer.add_linear("self_attn.q_proj", model.heads * model.head_dim, d, true);
  layer.add_linear("self_attn.k_proj", kv_width, d, true);
  layer.add_linear("self_attn.v_proj", kv_width, d, true);
  layer.add_linear("self_attn.dense", d, model.heads * model.head_dim, true);
  if (model.head_norms) {
    layer.add_norm("self_attn.q_layernorm", model.head_dim, true);
    layer.add_norm("self_attn.k_layernorm", model.head_dim, true);
  }
  layer.add_linear("mlp.fc1", model.hidden, d, true);
  layer.add_linear("mlp.fc2", d, model.hidden, true);
}

std::vector<CaseTensor> layer_of_gpt(const Model& model, const Names& names, int index) {
  LayerTensors layer(fmt::format("{}{}.{}.", names.model, names.layers, index), index);
  switch (model.family) {
    case Family::llama: break;
    case Family::gpt2:
    case Family::gpt_bigcode: add_gpt2(model, layer); break;
    case Family::gpt_neox:
    case Family::bloom:
    case Family::falcon: add_fused(model, layer); break;
    case Family::opt: add_opt(model, layer); break;
    case Family::phi: add_phi(model, layer); break;
  }
  return layer.take();
}

std::vector<CaseTensor> before_layers_of_gpt(const Model& model, const Names& names) {
  LayerTensors all(std::string(names.model), -1);
  const Extent width = model.embedding_width == 0 ? model.width : model.embedding_width;
  all.add(fmt::format("{}.weight", names.embedding), {model.vocabulary, width});
  if (!names.positions.empty()) all.add(fmt::format("{}.weight", names.positions), {model.positions, model.width});
  if (model.family == Family::bloom) all.add_norm("word_embeddings_layernorm", model.width, true);
  if (width == model.width) return all.take();
  all.add_linear("project_out", width, model.width);
  all.add_linear("project_in", model.width, width);
  return all.take();
}

std::vector<CaseTensor> after_layers_of_gpt(const Model& model, const Names& names, int layers) {
  LayerTensors all("", layers);
  if (model.final_norm) all.add_norm(fmt::format("{}{}", names.model, names.norm), model.width, true);
  const Extent width = model.embedding_width == 0 ? model.width : model.embedding_width;
  if (!model.tied) all.add_linear(std::string(names.head), model.vocabulary, width);
  if (model.family == Family::phi) all.add(fmt::format("{}.bias", names.head), {model.vocabulary});  // tied or not
  return all.take();
}

}  // namespace

std::vector<CaseTensor> tensors_of_gpt(const Model& model, int layers, bool embeddings) {
  const Names names = names_of(model.family);
  std::vector<CaseTensor> tensors;
  const auto append = [&](std::vector<CaseTensor> more) { std::ranges::move(more, std::back_inserter(tensors)); };
  if (embeddings) append(before_layers_of_gpt(model, names));
  for (int index = 0; index < layers; ++index) append(layer_of_gpt(model, names, index));
  if (embeddings) append(after_layers_of_gpt(model, names, layers));
  return tensors;
}

}  // namespace shardwire
