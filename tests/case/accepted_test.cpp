// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <map>
#include <random>
#include <set>

#include "case/case.hpp"
#include "case/json_node.hpp"
#include "case/layout_parser.hpp"
#include "case/made_case.hpp"
#include "case/model_config.hpp"
#include "case/models.hpp"
#include "case_text.hpp"
#include "json_schema.hpp"
#include "shardwire/box.hpp"
#include "support/file.hpp"
#include "support/sanitizer.hpp"

BOOST_AUTO_TEST_SUITE(accepted_cases)

namespace {

using namespace shardwire;
using namespace shardwire::test;

const char* const example = R"j({
  "name": "8b-fsdp8-to-fsdp4xtp2",
  "dtype": "f32",
  "states": ["master", "exp_avg", "exp_avg_sq"],
  "scalars": {"step": 1000, "lr": 0.5, "amsgrad": false, "note": "x", "none": null},
  "dtypes": {"exp_avg": "bf16"},
  "hosts": 4,
  "tensors": [
    {"fqn": "layers.0.self_attn.o_proj.weight", "shape": [4096, 4096], "rule": "col"},
    {"fqn": "temperature", "shape": [1], "rule": "col"},
    {"fqn": "norm.weight", "shape": [4096], "rule": "rep"}
  ],
  "source": {"ranks": 8, "lost": [3, 1], "rules": {"*": {"mesh": [8], "placements": ["S(0)"]
}
}
}
, "target" : {
  "ranks" : 8, "rules" : {
    "col" : {"mesh" : [ 4, 2 ], "placements" : [ "S(0)", "S(1)" ]},
            "row" : {"mesh" : [ 4, 2 ], "placements" : [ "SS(0,2)", "S(0)" ], "order" : "tp_first"},
                    "rep" : {
      "mesh" : [ 4, 2 ], "placements" : [ "S(0)", "R" ]
    }
  }
}
})j";

std::pair<std::size_t, ElementCount> size_of_model(const char* name) {
  const Model* model = find_model(name);
  BOOST_REQUIRE(model != nullptr);
  ElementCount parameters = 0;
  const auto tensors = tensors_of(*model, model->layers, true);
  for (const CaseTensor& tensor : tensors) parameters += volume_of(tensor.shape);
  return {tensors.size(), parameters};
}

bool accepted(const std::string& text) {
  try {
    parse_case(text);
    static const JsonSchema schema(case_schema());
    BOOST_TEST(schema.accepts(parse_json(text)), text);
    return true;
  } catch (const CaseError&) {
    return false;  // any other exception ends the test
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_documented_example) {
  const Case job = parse_case(example);
  BOOST_TEST(job.name == "8b-fsdp8-to-fsdp4xtp2");
  BOOST_TEST(job.tensors == 3);
  BOOST_TEST(job.ranks_per_host == 4);
  BOOST_TEST(job.scalars.size() == 5);
  BOOST_TEST((job.source.lost == std::vector<Rank>{Rank{1}, Rank{3}}));
  BOOST_REQUIRE(job.source.layout.sections.size() == 1);
  BOOST_TEST(job.source.layout.sections[0].ranks.size() == 6);
  const auto& tensors = job.target.layout.sections.at(0).manifest->tensors;
  BOOST_REQUIRE(tensors.size() == 6);  // two of more than one element, three states
  BOOST_CHECK(tensors[1].spec.key == (TensorKey{"layers.0.self_attn.o_proj.weight", "exp_avg"}));
  BOOST_CHECK(tensors[1].spec.dtype == DType::bf16);
  BOOST_CHECK(tensors[2].spec.dtype == DType::f32);
  BOOST_CHECK(tensors[0].layout == Layout::mesh({4, 2}, {Shard{0}, Shard{1}}));
  BOOST_REQUIRE(job.by_value.size() == 3);  // its rule would split a dim that it lacks
  BOOST_TEST(job.by_value[0].key.fqn == "temperature");
}

BOOST_AUTO_TEST_CASE(values_keep_their_types) {
  const Case job = parse_case(example);
  for (const auto& [name, value] : job.scalars) {
    if (name == "step") BOOST_CHECK(value == Value(std::int64_t{1000}));
    if (name == "lr") BOOST_CHECK(value == Value(0.5));
    if (name == "amsgrad") BOOST_CHECK(value == Value(false));
    if (name == "note") BOOST_CHECK(value == Value(std::string("x")));
    if (name == "none") BOOST_CHECK(value == Value());
  }
}

BOOST_AUTO_TEST_CASE(models_have_their_published_sizes) {
  BOOST_CHECK(size_of_model("llama3-8b") == (std::pair<std::size_t, ElementCount>{291, 8'030'261'248}));
  BOOST_CHECK(size_of_model("llama3-70b") == (std::pair<std::size_t, ElementCount>{723, 70'553'706'496}));
  BOOST_CHECK(size_of_model("llama3-405b") == (std::pair<std::size_t, ElementCount>{1137, 405'853'388'800}));
  BOOST_TEST(size_of_model("deepseek-v3").first == 45'395);
}

// Numbers of public configurations: layers, width, feed-forward part, heads, key-value heads, vocabulary.
struct Published {
  const char* title;
  const char* config;
  std::size_t tensors;
  ElementCount parameters;
};
std::ostream& operator<<(std::ostream& out, const Published& model) {
  return out << model.title;
}

const Published published[] = {
    {"llama_tied", R"j({"model_type": "llama", "num_hidden_layers": 16, "hidden_size": 2048, "intermediate_size": 8192,
      "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": true})j",
     146, 1'235'814'400},
    {"mistral", R"j({"model_type": "mistral", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
      "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "head_dim": null})j",
     291, 7'241'732'096},
    {"mixtral", R"j({"model_type": "mixtral", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
      "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8})j",
     995, 46'702'792'704},
    {"qwen2", R"j({"model_type": "qwen2", "num_hidden_layers": 24, "hidden_size": 896, "intermediate_size": 4864,
      "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": true})j",
     290, 494'032'768},
    {"qwen2_moe",
     R"j({"model_type": "qwen2_moe", "num_hidden_layers": 24, "hidden_size": 2048, "intermediate_size": 5632,
      "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 151936, "num_experts": 60,
      "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "decoder_sparse_step": 1})j",
     4659, 14'315'784'192},
    {"qwen3", R"j({"model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096, "intermediate_size": 12288,
      "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 151936, "head_dim": 128})j",
     399, 8'190'735'360},
    {"qwen3_moe",
     R"j({"model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "intermediate_size": 6144,
      "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 151936, "head_dim": 128, "num_experts": 128,
      "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": []})j",
     18867, 30'532'122'624},
    {"deepseek_v2",
     R"j({"model_type": "deepseek_v2", "num_hidden_layers": 27, "hidden_size": 2048, "intermediate_size": 10944,
      "num_attention_heads": 16, "vocab_size": 102400, "q_lora_rank": null, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1408,
      "first_k_dense_replace": 1, "moe_layer_freq": 1})j",
     5291, 15'706'484'224},
    {"gemma", R"j({"model_type": "gemma", "num_hidden_layers": 18, "hidden_size": 2048, "intermediate_size": 16384,
      "num_attention_heads": 8, "num_key_value_heads": 1, "vocab_size": 256000, "head_dim": 256})j",
     164, 2'506'172'416},
    {"gemma2", R"j({"model_type": "gemma2", "num_hidden_layers": 26, "hidden_size": 2304, "intermediate_size": 9216,
      "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 256000, "head_dim": 256})j",
     288, 2'614'341'888},
    {"gemma3",
     R"j({"model_type": "gemma3_text", "num_hidden_layers": 26, "hidden_size": 1152, "intermediate_size": 6912,
      "num_attention_heads": 4, "num_key_value_heads": 1, "vocab_size": 262144, "head_dim": 256})j",
     340, 999'885'952},
    {"gemma3_with_vision",
     R"j({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 2560,
      "intermediate_size": 10240, "num_hidden_layers": 34, "num_key_value_heads": null},
      "vision_config": {"model_type": "siglip_vision_model",
      "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "num_attention_heads": 16, "num_hidden_layers": 27,
      "patch_size": 14, "vision_use_head": false}})j",
     883, 4'300'079'472},
    {"gpt2",
     R"j({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257})j",
     148, 124'439'808},
    {"gpt_bigcode", R"j({"model_type": "gpt_bigcode", "n_layer": 40, "n_embd": 6144, "n_head": 48, "n_inner": 24576,
      "n_positions": 8192, "vocab_size": 49152, "multi_query": true})j",
     484, 15'517'456'384},
    {"gpt_neox", R"j({"model_type": "gpt_neox", "num_hidden_layers": 6, "hidden_size": 512, "intermediate_size": 2048,
      "num_attention_heads": 8, "vocab_size": 50304, "tie_word_embeddings": false})j",
     76, 70'426'624},
    {"bloom", R"j({"model_type": "bloom", "n_layer": 24, "n_embed": 1024, "n_inner": null, "num_attention_heads": 16,
      "vocab_size": 250880})j",
     293, 559'214'592},
    {"falcon", R"j({"model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544, "num_attention_heads": 71,
      "vocab_size": 65024, "bias": false, "multi_query": true, "new_decoder_architecture": false, "parallel_attn": true})j",
     195, 6'921'720'704},
    {"falcon_grouped", R"j({"model_type": "falcon", "num_hidden_layers": 60, "hidden_size": 8192,
      "num_attention_heads": 128, "num_kv_heads": 8, "vocab_size": 65024, "bias": false, "new_decoder_architecture": true,
      "parallel_attn": true})j",
     483, 41'303'293'952},
    {"opt", R"j({"model_type": "opt", "num_hidden_layers": 12, "hidden_size": 768, "ffn_dim": 3072,
      "num_attention_heads": 12, "max_position_embeddings": 2048, "word_embed_proj_dim": 768, "vocab_size": 50272})j",
     196, 125'239'296},
    {"opt_projected", R"j({"model_type": "opt", "num_hidden_layers": 24, "hidden_size": 1024, "ffn_dim": 4096,
      "num_attention_heads": 16, "max_position_embeddings": 2048, "word_embed_proj_dim": 512, "vocab_size": 50272,
      "do_layer_norm_before": false})j",
     388, 331'196'416},
    {"phi", R"j({"model_type": "phi", "num_hidden_layers": 32, "hidden_size": 2560, "intermediate_size": 10240,
      "num_attention_heads": 32, "num_key_value_heads": null, "vocab_size": 51200, "tie_word_embeddings": false})j",
     453, 2'779'683'840},
};

Model model_of(const std::string& config) {
  const File file("config.json", config);
  return load_model_config(file.path());
}

BOOST_DATA_TEST_CASE(configs_give_the_published_sizes, boost::unit_test::data::make(published), sample) {
  const Model model = model_of(sample.config);
  const auto tensors = tensors_of(model, model.layers, true);
  ElementCount parameters = 0;
  for (const CaseTensor& tensor : tensors) parameters += volume_of(tensor.shape);
  BOOST_TEST(tensors.size() == sample.tensors);
  BOOST_TEST(parameters == sample.parameters);
}

struct Named {
  const char* title;
  const char* config;
  const char* tensors;
};
std::ostream& operator<<(std::ostream& out, const Named& model) {
  return out << model.title;
}

// Names and shapes of the library's modules, and the dim that tensor parallelism splits.
const Named small_named[] = {
    {"gemma3_with_vision",
     R"j({"model_type": "gemma3", "text_config": {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 20,
       "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 10}, "vision_config": {
       "num_hidden_layers": 1, "hidden_size": 6, "intermediate_size": 12, "image_size": 8, "patch_size": 2,
       "vision_use_head": false}})j",
     R"(vision_tower.vision_model.embeddings.patch_embedding.weight (6, 3, 2, 2) rep
vision_tower.vision_model.embeddings.patch_embedding.bias (6,) rep
vision_tower.vision_model.embeddings.position_embedding.weight (16, 6) rep
vision_tower.vision_model.encoder.layers.0.layer_norm1.weight (6,) rep
vision_tower.vision_model.encoder.layers.0.layer_norm1.bias (6,) rep
vision_tower.vision_model.encoder.layers.0.self_attn.k_proj.weight (6, 6) rep
vision_tower.vision_model.encoder.layers.0.self_attn.k_proj.bias (6,) rep
vision_tower.vision_model.encoder.layers.0.self_attn.v_proj.weight (6, 6) rep
vision_tower.vision_model.encoder.layers.0.self_attn.v_proj.bias (6,) rep
vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight (6, 6) rep
vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.bias (6,) rep
vision_tower.vision_model.encoder.layers.0.self_attn.out_proj.weight (6, 6) rep
vision_tower.vision_model.encoder.layers.0.self_attn.out_proj.bias (6,) rep
vision_tower.vision_model.encoder.layers.0.layer_norm2.weight (6,) rep
vision_tower.vision_model.encoder.layers.0.layer_norm2.bias (6,) rep
vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight (12, 6) rep
vision_tower.vision_model.encoder.layers.0.mlp.fc1.bias (12,) rep
vision_tower.vision_model.encoder.layers.0.mlp.fc2.weight (6, 12) rep
vision_tower.vision_model.encoder.layers.0.mlp.fc2.bias (6,) rep
vision_tower.vision_model.post_layernorm.weight (6,) rep
vision_tower.vision_model.post_layernorm.bias (6,) rep
multi_modal_projector.mm_input_projection_weight (6, 8) rep
multi_modal_projector.mm_soft_emb_norm.weight (6,) rep
language_model.model.embed_tokens.weight (10, 8) row
language_model.model.layers.0.input_layernorm.weight (8,) rep
language_model.model.layers.0.self_attn.q_proj.weight (8, 8) row
language_model.model.layers.0.self_attn.k_proj.weight (4, 8) row
language_model.model.layers.0.self_attn.v_proj.weight (4, 8) row
language_model.model.layers.0.self_attn.o_proj.weight (8, 8) col
language_model.model.layers.0.self_attn.q_norm.weight (4,) rep
language_model.model.layers.0.self_attn.k_norm.weight (4,) rep
language_model.model.layers.0.post_attention_layernorm.weight (8,) rep
language_model.model.layers.0.pre_feedforward_layernorm.weight (8,) rep
language_model.model.layers.0.post_feedforward_layernorm.weight (8,) rep
language_model.model.layers.0.mlp.gate_proj.weight (20, 8) row
language_model.model.layers.0.mlp.up_proj.weight (20, 8) row
language_model.model.layers.0.mlp.down_proj.weight (8, 20) col
language_model.model.norm.weight (8,) rep
)"},
    {"gpt_bigcode_with_one_head_of_keys",
     R"j({"model_type": "gpt_bigcode", "n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 6, "vocab_size": 10})j",
     R"(transformer.wte.weight (10, 8) row
transformer.wpe.weight (6, 8) rep
transformer.h.0.ln_1.weight (8,) rep
transformer.h.0.ln_1.bias (8,) rep
transformer.h.0.attn.c_attn.weight (16, 8) rep
transformer.h.0.attn.c_attn.bias (16,) rep
transformer.h.0.attn.c_proj.weight (8, 8) rep
transformer.h.0.attn.c_proj.bias (8,) rep
transformer.h.0.ln_2.weight (8,) rep
transformer.h.0.ln_2.bias (8,) rep
transformer.h.0.mlp.c_fc.weight (32, 8) row
transformer.h.0.mlp.c_fc.bias (32,) row
transformer.h.0.mlp.c_proj.weight (8, 32) col
transformer.h.0.mlp.c_proj.bias (8,) rep
transformer.ln_f.weight (8,) rep
transformer.ln_f.bias (8,) rep
)"},
    {"gpt_neox_without_biases_of_attention",
     R"j({"model_type": "gpt_neox", "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 20, "vocab_size": 10,
       "attention_bias": false})j",
     R"(gpt_neox.embed_in.weight (10, 8) row
gpt_neox.layers.0.input_layernorm.weight (8,) rep
gpt_neox.layers.0.input_layernorm.bias (8,) rep
gpt_neox.layers.0.post_attention_layernorm.weight (8,) rep
gpt_neox.layers.0.post_attention_layernorm.bias (8,) rep
gpt_neox.layers.0.attention.query_key_value.weight (24, 8) row
gpt_neox.layers.0.attention.dense.weight (8, 8) col
gpt_neox.layers.0.mlp.dense_h_to_4h.weight (20, 8) row
gpt_neox.layers.0.mlp.dense_h_to_4h.bias (20,) row
gpt_neox.layers.0.mlp.dense_4h_to_h.weight (8, 20) col
gpt_neox.layers.0.mlp.dense_4h_to_h.bias (8,) rep
gpt_neox.final_layer_norm.weight (8,) rep
gpt_neox.final_layer_norm.bias (8,) rep
embed_out.weight (10, 8) row
)"},
    {"bloom", R"j({"model_type": "bloom", "num_hidden_layers": 1, "hidden_size": 8, "vocab_size": 10})j",
     R"(transformer.word_embeddings.weight (10, 8) row
transformer.word_embeddings_layernorm.weight (8,) rep
transformer.word_embeddings_layernorm.bias (8,) rep
transformer.h.0.input_layernorm.weight (8,) rep
transformer.h.0.input_layernorm.bias (8,) rep
transformer.h.0.post_attention_layernorm.weight (8,) rep
transformer.h.0.post_attention_layernorm.bias (8,) rep
transformer.h.0.self_attention.query_key_value.weight (24, 8) row
transformer.h.0.self_attention.query_key_value.bias (24,) row
transformer.h.0.self_attention.dense.weight (8, 8) col
transformer.h.0.self_attention.dense.bias (8,) rep
transformer.h.0.mlp.dense_h_to_4h.weight (32, 8) row
transformer.h.0.mlp.dense_h_to_4h.bias (32,) row
transformer.h.0.mlp.dense_4h_to_h.weight (8, 32) col
transformer.h.0.mlp.dense_4h_to_h.bias (8,) rep
transformer.ln_f.weight (8,) rep
transformer.ln_f.bias (8,) rep
)"},
    {"falcon_with_one_head_of_keys",
     R"j({"model_type": "falcon", "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 4, "vocab_size": 10,
       "tie_word_embeddings": false, "parallel_attn": false})j",
     R"(transformer.word_embeddings.weight (10, 8) row
transformer.h.0.input_layernorm.weight (8,) rep
transformer.h.0.input_layernorm.bias (8,) rep
transformer.h.0.post_attention_layernorm.weight (8,) rep
transformer.h.0.post_attention_layernorm.bias (8,) rep
transformer.h.0.self_attention.query_key_value.weight (12, 8) rep
transformer.h.0.self_attention.dense.weight (8, 8) rep
transformer.h.0.mlp.dense_h_to_4h.weight (32, 8) row
transformer.h.0.mlp.dense_4h_to_h.weight (8, 32) col
transformer.ln_f.weight (8,) rep
transformer.ln_f.bias (8,) rep
lm_head.weight (10, 8) row
)"},
    {"opt_with_narrow_embeddings",
     R"j({"model_type": "opt", "num_hidden_layers": 1, "hidden_size": 8, "ffn_dim": 20, "max_position_embeddings": 6,
       "word_embed_proj_dim": 4, "vocab_size": 10, "enable_bias": false})j",
     R"(model.decoder.embed_tokens.weight (10, 4) row
model.decoder.embed_positions.weight (8, 8) rep
model.decoder.project_out.weight (4, 8) rep
model.decoder.project_in.weight (8, 4) rep
model.decoder.layers.0.self_attn.k_proj.weight (8, 8) row
model.decoder.layers.0.self_attn.v_proj.weight (8, 8) row
model.decoder.layers.0.self_attn.q_proj.weight (8, 8) row
model.decoder.layers.0.self_attn.out_proj.weight (8, 8) col
model.decoder.layers.0.fc1.weight (20, 8) row
model.decoder.layers.0.fc2.weight (8, 20) col
model.decoder.layers.0.self_attn_layer_norm.weight (8,) rep
model.decoder.layers.0.self_attn_layer_norm.bias (8,) rep
model.decoder.layers.0.final_layer_norm.weight (8,) rep
model.decoder.layers.0.final_layer_norm.bias (8,) rep
model.decoder.final_layer_norm.weight (8,) rep
model.decoder.final_layer_norm.bias (8,) rep
)"},
    {"phi_with_norms_of_heads",
     R"j({"model_type": "phi", "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 20, "num_attention_heads": 4,
       "num_key_value_heads": 2, "vocab_size": 10, "qk_layernorm": true})j",
     R"(model.embed_tokens.weight (10, 8) row
model.layers.0.input_layernorm.weight (8,) rep
model.layers.0.input_layernorm.bias (8,) rep
model.layers.0.self_attn.q_proj.weight (8, 8) row
model.layers.0.self_attn.q_proj.bias (8,) row
model.layers.0.self_attn.k_proj.weight (4, 8) row
model.layers.0.self_attn.k_proj.bias (4,) row
model.layers.0.self_attn.v_proj.weight (4, 8) row
model.layers.0.self_attn.v_proj.bias (4,) row
model.layers.0.self_attn.dense.weight (8, 8) col
model.layers.0.self_attn.dense.bias (8,) rep
model.layers.0.self_attn.q_layernorm.weight (2,) rep
model.layers.0.self_attn.q_layernorm.bias (2,) rep
model.layers.0.self_attn.k_layernorm.weight (2,) rep
model.layers.0.self_attn.k_layernorm.bias (2,) rep
model.layers.0.mlp.fc1.weight (20, 8) row
model.layers.0.mlp.fc1.bias (20,) row
model.layers.0.mlp.fc2.weight (8, 20) col
model.layers.0.mlp.fc2.bias (8,) rep
model.final_layernorm.weight (8,) rep
model.final_layernorm.bias (8,) rep
lm_head.weight (10, 8) row
lm_head.bias (10,) row
)"},
};

BOOST_DATA_TEST_CASE(configs_give_the_names_of_the_library, boost::unit_test::data::make(small_named), sample) {
  const Model model = model_of(sample.config);
  std::string text;
  for (const CaseTensor& tensor : tensors_of(model, model.layers, true)) {
    text += fmt::format("{} {} {}\n", tensor.fqn, to_string(tensor.shape), tensor.rule);
  }
  BOOST_TEST(text == sample.tensors);
}

BOOST_AUTO_TEST_CASE(a_tied_head_keeps_its_bias) {
  const Model model =
      model_of(R"j({"model_type": "phi", "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 20,
    "num_attention_heads": 4, "vocab_size": 10, "tie_word_embeddings": true})j");
  const auto tensors = tensors_of(model, model.layers, true);
  BOOST_TEST(tensors[tensors.size() - 2].fqn == "model.final_layernorm.bias");
  BOOST_TEST(tensors.back().fqn == "lm_head.bias");
  BOOST_TEST(to_string(tensors.back().shape) == "(10,)");
  BOOST_TEST(tensors.back().rule == "row");
}

BOOST_AUTO_TEST_CASE(the_outer_config_ties_the_head_and_else_the_inner_one) {
  const auto last = [](const char* outer, const char* inner) {
    const Model model =
        model_of(fmt::format(R"j({{"model_type": "gemma3", {}"text_config": {{{}"num_hidden_layers": 1}},
      "vision_config": {{"vision_use_head": false}}}})j",
                             outer, inner));
    return tensors_of(model, model.layers, true).back().fqn;
  };
  BOOST_TEST(last("", "") == "language_model.model.norm.weight");
  BOOST_TEST(last(R"j("tie_word_embeddings": false, )j", "") == "language_model.lm_head.weight");
  BOOST_TEST(last("", R"j("tie_word_embeddings": false, )j") == "language_model.lm_head.weight");
  BOOST_TEST(last(R"j("tie_word_embeddings": true, )j", R"j("tie_word_embeddings": false, )j") ==
             "language_model.model.norm.weight");
}

std::string refusal_of(const std::string& config) {
  const File file("config.json", config);
  try {
    load_model_config(file.path());
  } catch (const CaseError& error) {
    return std::string(error.what()).substr(file.path().size());
  }
  return "accepted";
}

BOOST_AUTO_TEST_CASE(a_config_whose_tensors_are_not_known_is_refused) {
  const auto refusal = [](const char* vision) {
    return refusal_of(fmt::format(R"j({{"model_type": "gemma3", "text_config": {{}}{}}})j", vision));
  };
  BOOST_TEST(refusal("") == ": the field 'vision_config' is missing");
  BOOST_TEST(refusal(R"j(, "vision_config": {"vision_use_head": true})j") ==
             ": vision_config: only models without a head of vision are known: \"vision_use_head\" must be false");
  BOOST_TEST(refusal(R"j(, "vision_config": 3)j") == ": vision_config: an object is expected, this is number");
  BOOST_TEST(refusal_of(R"j({"model_type": "falcon", "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 3,
    "vocab_size": 10})j") == ": num_attention_heads: 3 does not divide the width, 8");
  BOOST_TEST(refusal_of(R"j({"model_type": "gpt_bigcode", "add_cross_attention": true})j") ==
             ": add_cross_attention: only models without cross-attention are known: it must be false");
}

BOOST_AUTO_TEST_CASE(a_field_that_is_missing_is_named_with_the_one_that_may_be_it) {
  BOOST_TEST(refusal_of("[]") == ": an object is expected, this is array");
  BOOST_TEST(refusal_of(R"j({"model_typ": "llama"})j") ==
             ": the field 'model_type' is missing (did you misspell it as 'model_typ'?)");
  const auto llama = [](const char* layers) {
    return refusal_of(fmt::format(R"j({{"model_type": "llama", "hidden_size": 8, {}"vocab_size": 32}})j", layers));
  };
  BOOST_TEST(llama(R"j("num_hiden_layers": 2, )j") ==
             ": the field 'num_hidden_layers' is missing (did you misspell it as 'num_hiden_layers'?)");
  BOOST_TEST(llama(R"j("num_hidden_layers": null, "layerdrop": 0, )j") == ": the field 'num_hidden_layers' is missing");
  // Another field of nearly this name.
  BOOST_TEST(llama(R"j("num_hidden_layers": 2, "moe_intermediate_size": 16, )j") ==
             ": the field 'intermediate_size' is missing");
  BOOST_TEST(refusal_of(R"j({"model_type": "gemma3", "text_config": {}, "vison_config": {}})j") ==
             ": the field 'vision_config' is missing (did you misspell it as 'vison_config'?)");
}

BOOST_AUTO_TEST_CASE(a_config_gives_what_a_named_model_has) {
  const Model model = model_of(R"j({"model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168,
    "intermediate_size": 18432, "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
    "num_nextn_predict_layers": 1, "tie_word_embeddings": false})j");
  const auto tensors = tensors_of(model, model.layers, true);
  const auto named = tensors_of(*find_model("deepseek-v3"), 61, true);
  BOOST_REQUIRE(tensors.size() == named.size());
  for (std::size_t i = 0; i < named.size(); ++i) {
    if (tensors[i].fqn == named[i].fqn && tensors[i].shape == named[i].shape && tensors[i].rule == named[i].rule)
      continue;
    BOOST_ERROR(tensors[i].fqn << " stands where " << named[i].fqn << " is");
    break;
  }
}

// Small models of every kind of tensors.
const char* const small_models[] = {
    R"j({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 1024, "intermediate_size": 2048, "num_attention_heads": 8,
      "num_key_value_heads": 2, "vocab_size": 1000, "attention_bias": true, "mlp_bias": true})j",
    R"j({"model_type": "mixtral", "num_hidden_layers": 1, "hidden_size": 1024, "intermediate_size": 2048, "num_attention_heads": 8,
      "num_key_value_heads": 2, "vocab_size": 1000, "num_local_experts": 12})j",
    R"j({"model_type": "gpt2", "n_layer": 1, "n_embd": 1024, "n_head": 8, "n_positions": 100, "vocab_size": 1000})j",
    R"j({"model_type": "gpt_bigcode", "n_layer": 1, "n_embd": 1024, "n_head": 8, "n_positions": 100, "vocab_size": 1000})j",
    R"j({"model_type": "opt", "num_hidden_layers": 1, "hidden_size": 1024, "ffn_dim": 2048, "max_position_embeddings": 100,
      "word_embed_proj_dim": 512, "vocab_size": 1000})j",
    R"j({"model_type": "gemma3", "text_config": {"num_hidden_layers": 1, "hidden_size": 1024, "intermediate_size": 2048,
      "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 1000}, "vision_config": {
      "num_hidden_layers": 1, "hidden_size": 256, "intermediate_size": 512, "vision_use_head": false}})j",
};

// Every element that the target wants has a holder, in every combination of layouts and optimizers.
BOOST_AUTO_TEST_CASE(made_cases_are_whole) {
  // With a sanitizer each seventh: no number of layouts is a multiple of that, so that all take their turn.
  constexpr int every = with_sanitizer ? 7 : 1;
  int cases = 0;
  for (const char* const config : small_models) {
    const Model model = model_of(config);
    for (const char* const optimizer : {"adamw", "adam8bit", "muon", "adafactor"}) {
      for (const std::string from : {"fsdp=3", "ddp=2", "hsdp=2x3,tp=2", "fsdp=4,tp=2,ep=4", "hsdp=2x6,ep=2"}) {
        for (const std::string to : {"tp=4", "fsdp=5,tp=4", "ddp=2,tp=2", "fsdp=6,ep=3,tp=2"}) {
          const bool has_experts = model.experts.count > 0;
          if (!has_experts && (from + to).find("ep=") != std::string::npos) continue;
          if (cases++ % every != 0) continue;
          const MadeCase made{.name = model.name,
                              .tensors = tensors_of(model, model.layers, true),
                              .optimizer = optimizer,
                              .source = parse_degrees("--source", from),
                              .target = parse_degrees("--target", to)};
          const std::string text = case_text(made);
          BOOST_TEST_CONTEXT(model.name << ' ' << optimizer << ' ' << from << ' ' << to) {
            BOOST_REQUIRE(accepted(text));
            const Case job = parse_case(text);
            BOOST_TEST(job.tensors == made.tensors.size());
            BOOST_TEST(job.source.ranks == made.source.ranks());
            BOOST_TEST((job.source.warnings.empty() && job.target.warnings.empty()));
            BOOST_CHECK_NO_THROW(static_cast<void>(Planner(job.source.layout, job.target.layout).totals()));
            BOOST_CHECK_NO_THROW(static_cast<void>(Planner(job.target.layout, job.source.layout).totals()));
          }
        }
      }
    }
  }
  BOOST_TEST(cases > 100);
}

Layout made_layout(const std::string& degrees, const Split& split) {
  const std::string rule = layout_json(parse_degrees("--source", degrees), split, -1, 1);
  return parse_layout(Node(parse_json(rule), ""));
}

BOOST_AUTO_TEST_CASE(layouts_are_those_of_the_wrappers) {
  BOOST_CHECK(made_layout("fsdp=4", {.dim = 0}) == Layout::chunk(0, 4));
  BOOST_CHECK(made_layout("ddp=4", {}) == Layout::replicated());
  BOOST_CHECK(made_layout("hsdp=2x4", {}) == Layout::mesh({2, 4}, {Replicate{}, Shard{0}}));
  BOOST_CHECK(made_layout("tp=2", {.dim = 1}) == Layout::mesh({2}, {Shard{1}}));
  BOOST_CHECK(made_layout("fsdp=4,tp=2", {}) == Layout::mesh({4, 2}, {Shard{0}, Replicate{}}));
  BOOST_CHECK(made_layout("fsdp=4,tp=2", {.dim = 1}) == Layout::mesh({4, 2}, {Shard{0}, Shard{1}}));
  BOOST_CHECK(made_layout("fsdp=4,tp=2", {.dim = 0}) ==
              Layout::mesh({4, 2}, {StridedShard{0, 2}, Shard{0}}, MeshOrder::tp_first));
  BOOST_CHECK(made_layout("hsdp=2x2,tp=2", {.dim = 0}) ==
              Layout::mesh({2, 2, 2}, {Replicate{}, StridedShard{0, 2}, Shard{0}}, MeshOrder::tp_first));
}

// The bias of GPT-2's queries, keys and values: tp takes half of each, fsdp half of what is left.
BOOST_AUTO_TEST_CASE(queries_keys_and_values_in_one_tensor_are_split_each) {
  const Layout layout = made_layout("fsdp=2,tp=2", {.dim = 0, .parts = 3});
  const auto held = [&](int rank) {
    std::set<Extent> elements;
    for (const PlacedBox& placed : layout.boxes_of({24}, Rank{rank})) {
      for (Extent i = placed.box.lower(0); i < placed.box.upper(0); ++i) elements.insert(i);
    }
    return elements;
  };
  BOOST_TEST((held(0) == std::set<Extent>{0, 1, 2, 3, 8, 9}));        // first shard, first half
  BOOST_TEST((held(1) == std::set<Extent>{4, 5, 6, 7, 12, 13}));      // first shard, second half
  BOOST_TEST((held(2) == std::set<Extent>{10, 11, 16, 17, 18, 19}));  // second shard, first half
  BOOST_TEST((held(3) == std::set<Extent>{14, 15, 20, 21, 22, 23}));
}

BOOST_AUTO_TEST_CASE(experts_are_on_the_shards_of_their_group) {
  const Model model = model_of(small_models[1]);
  const Case job = parse_case(case_text({.name = "experts",
                                         .tensors = tensors_of(model, 1, false),
                                         .optimizer = "adamw",
                                         .source = parse_degrees("--source", "fsdp=4,ep=2"),
                                         .target = parse_degrees("--target", "fsdp=3,ep=3")}));
  const auto holders = [](const CaseSide& side, const std::string& fqn) {
    std::set<int> ranks;
    for (const TensorLayout& tensor : side.layout.sections.at(0).manifest->tensors) {
      for (int rank = 0; rank < side.ranks && tensor.spec.key.fqn == fqn; ++rank) {
        if (!tensor.layout.boxes_of(tensor.spec.shape, Rank{rank}).empty()) ranks.insert(rank);
      }
    }
    return ranks;
  };
  const std::string prefix = "model.layers.0.block_sparse_moe.experts.";
  BOOST_TEST((holders(job.source, prefix + "5.w1.weight") == std::set<int>{0, 2}));
  BOOST_TEST((holders(job.source, prefix + "6.w1.weight") == std::set<int>{1, 3}));
  BOOST_TEST((holders(job.target, prefix + "5.w1.weight") == std::set<int>{1}));
  BOOST_TEST((holders(job.target, prefix + "11.w2.weight") == std::set<int>{2}));
  BOOST_TEST((holders(job.source, "model.layers.0.self_attn.q_proj.weight") == std::set<int>{0, 1, 2, 3}));
}

BOOST_AUTO_TEST_CASE(optimizers_keep_their_own_states) {
  const Model model = model_of(small_models[0]);
  const auto keys = [&](const std::string& optimizer, const std::string& fqn) {
    const Case job = parse_case(case_text({.name = "states",
                                           .tensors = tensors_of(model, 1, true),
                                           .optimizer = optimizer,
                                           .source = parse_degrees("--source", "fsdp=2,tp=2"),
                                           .target = parse_degrees("--target", "fsdp=2")}));
    std::string text;
    for (const TensorLayout& tensor : job.source.layout.sections.at(0).manifest->tensors) {
      if (tensor.spec.key.fqn != fqn) continue;
      text += fmt::format("{}{} {} {}", text.empty() ? "" : "; ", tensor.spec.key.state, to_string(tensor.spec.dtype),
                          tensor.layout.to_string());
    }
    return text;
  };
  const std::string down = "model.layers.0.mlp.down_proj.weight";
  const std::string norm = "model.norm.weight";
  const std::string split = "mesh (2, 2) [S(0), S(1)]";
  BOOST_TEST(keys("adamw", down) == "master f32 " + split + "; exp_avg f32 " + split + "; exp_avg_sq f32 " + split);
  BOOST_TEST(keys("muon", down) == "master f32 " + split + "; momentum_buffer f32 " + split);
  BOOST_TEST(keys("muon", "lm_head.weight").find("exp_avg_sq") != std::string::npos);
  BOOST_TEST(keys("muon", norm).find("exp_avg_sq") != std::string::npos);
  BOOST_TEST(keys("adafactor", down) ==
             "exp_avg_sq_row f32 mesh (2, 2) [S(0), R]; exp_avg_sq_col f32 mesh (2, 2) [R, S(0)]; master f32 " + split);
  BOOST_TEST(keys("adafactor", norm) == "master f32 mesh (2, 2) [S(0), R]; exp_avg_sq f32 mesh (2, 2) [S(0), R]");
  BOOST_TEST(keys("adam8bit", down) == "absmax1 f32 " + split + "; absmax2 f32 " + split + "; master f32 " + split +
                                           "; state1 u8 " + split + "; state2 u8 " + split);
  BOOST_TEST(keys("adam8bit", norm).find("exp_avg_sq f32") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(one_layer_of_the_8b_model) {
  const Model* model = find_model("llama3-8b");
  ElementCount parameters = 0;
  for (const CaseTensor& tensor : tensors_of(*model, 1, false)) parameters += volume_of(tensor.shape);
  BOOST_TEST(parameters == 218'112'000);
}

BOOST_AUTO_TEST_CASE(edges_of_the_format) {
  BOOST_CHECK(accepted(with_source(R"j("ranks": 4, "rules": {"*": {"boxes": {}}})j")));
  BOOST_CHECK(accepted(with_source(R"j("ranks": 4, "rules": {"*": {"chunk": -1, "over": 2}})j")));
  BOOST_CHECK(accepted(
      with_source(R"j("ranks": 4, "rules": {"r": {"mesh": [2], "placements": ["S(-2)"], "ranks": [3, 1]}})j")));
  BOOST_CHECK(accepted(with_source(R"j("ranks": 1, "lost": [0], "rules": {"*": {"replicated": true}})j")));
  BOOST_CHECK(accepted(with_tensor(R"j("fqn": "w", "shape": [])j")));
  BOOST_CHECK(accepted(with_tensor(R"j("fqn": "w", "shape": [0, 4])j")));
  BOOST_CHECK(accepted(with_tensor(R"j("fqn": "w", "shape": [4], "rule": "ranks")j")));
  // Boxes of different ranks may share elements.
  BOOST_CHECK(accepted(with_source(
      R"j("ranks": 4, "rules": {"r": {"boxes": {"0": [[[0, 0], [2, 2]]], "1": [[[0, 0], [2, 2]], [[2, 0], [6, 4]]]}}})j")));
}

BOOST_AUTO_TEST_CASE(a_flat_list_is_one_flat_parameter_in_one_buffer) {
  const char* const tensors = R"j({"fqn": "a", "shape": [9, 5]}, {"fqn": "s", "shape": [1]}, {"fqn": "b", "shape": [5]},
    {"fqn": "c", "shape": [6]})j";
  const Case job = parse_case(case_text(
      tensors, R"j("ranks": 2, "rules": {"*": {"flat": [["*"]], "world": 2, "align": 4}})j",
      R"j("ranks": 2, "rules": {"*": {"flat": [["c", "s"], ["b", "a"]], "world": 2}})j", R"j("dtype": "bf16")j"));
  const auto& source = job.source.layout.sections.at(0).manifest->tensors;
  BOOST_REQUIRE(source.size() == 3U);  // the one-element tensor travels by value, but still has its layout
  const std::vector<FlatMember> all{{{9, 5}}, {{1}}, {{5}}, {{6}}};
  const auto layouts = Layout::flat(all, 2, 4);
  BOOST_CHECK(source[0].layout == layouts[0]);
  BOOST_CHECK(source[1].layout == layouts[2]);
  BOOST_CHECK(source[2].layout == layouts[3]);
  BOOST_TEST((job.source.buffers == std::vector<std::vector<std::uint32_t>>{{0, 0, 0}}));
  const auto& target = job.target.layout.sections.at(0).manifest->tensors;
  BOOST_CHECK(target[0].layout == Layout::flat(std::vector<FlatMember>{{{5}}, {{9, 5}}}, 2)[1]);
  BOOST_CHECK(target[2].layout == Layout::flat(std::vector<FlatMember>{{{6}}, {{1}}}, 2)[0]);
  BOOST_TEST((job.target.buffers == std::vector<std::vector<std::uint32_t>>{{0, 0, 1}}));
}

BOOST_AUTO_TEST_CASE(a_tensor_may_have_states_of_its_own) {
  const char* const tensors = R"j({"fqn": "a", "shape": [4, 6]},
    {"fqn": "b", "shape": [4, 6], "rule": "r", "states": [{"name": "m", "dtype": "u8"}, {"name": "rows", "shape": [4], "rule": "f"},
     {"name": "step", "shape": [1], "rule": "f"}, {"name": "v"}]})j";
  const Case job = parse_case(
      case_text(tensors, R"j("ranks": 2, "rules": {"*": {"chunk": 1, "over": 2}, "f": {"replicated": true}})j",
                whole_side, R"j("dtypes": {"v": "bf16"})j"));
  BOOST_TEST(job.tensors == 2U);
  BOOST_TEST(job.tensor_states == 5U);
  BOOST_TEST((job.states == std::vector<std::string>{"m", "rows", "step", "v"}));
  BOOST_REQUIRE(job.by_value.size() == 1U);
  BOOST_CHECK(job.by_value[0].key == (TensorKey{"b", "step"}));
  std::map<std::string, TensorLayout> found;
  for (const TensorLayout& one : job.source.layout.sections.at(0).manifest->tensors) {
    found.emplace(to_string(one.spec.key), one);
  }
  BOOST_REQUIRE(found.size() == 4U);
  BOOST_CHECK(found.at("a:m").spec.dtype == DType::f32);
  BOOST_CHECK(found.at("b:m").spec.dtype == DType::u8);
  BOOST_CHECK(found.at("b:v").spec.dtype == DType::bf16);
  BOOST_CHECK(found.at("b:v").layout == Layout::chunk(1, 2));
  BOOST_CHECK(found.at("b:rows").spec.shape == (Extents{4}));
  BOOST_CHECK(found.at("b:rows").layout == Layout::replicated());
  BOOST_TEST((job.source.buffers == std::vector<std::vector<std::uint32_t>>{{0, 1, 2, 3}}));
}

BOOST_AUTO_TEST_CASE(states_of_one_type_share_the_buffer_of_their_flat_parameter) {
  const char* const tensors =
      R"j({"fqn": "a", "shape": [4, 6]}, {"fqn": "b", "shape": [4, 6], "states": [{"name": "v"}]},
    {"fqn": "c", "shape": [8], "states": [{"name": "v"}, {"name": "m"}]}, {"fqn": "d", "shape": [8], "states": [{"name": "m", "dtype": "u8"}]})j";
  const Case job =
      parse_case(case_text(tensors, R"j("ranks": 2, "rules": {"*": {"flat": [["*"]], "world": 2}})j", whole_side));
  BOOST_TEST((job.source.buffers == std::vector<std::vector<std::uint32_t>>{{0, 1, 1, 0, 2}}));
}

BOOST_AUTO_TEST_CASE(a_layout_may_be_on_some_ranks) {
  const auto layout_of = [](const std::string& rule) {
    const Case job = parse_case(with_source(R"j("ranks": 6, "rules": {"r": )j" + rule + "}"));
    return job.source.layout.sections.at(0).manifest->tensors.at(0).layout;
  };
  const std::vector<Rank> odd{Rank{5}, Rank{1}, Rank{3}};
  const Layout flat = Layout::flat(std::vector<FlatMember>{{{8, 4}}}, 3)[0];
  BOOST_CHECK(layout_of(R"j({"flat": [["*"]], "world": 3, "ranks": [5, 1, 3]})j") == Layout::on_ranks(flat, odd));
  BOOST_CHECK(layout_of(R"j({"chunk": 0, "over": 3, "ranks": [5, 1, 3]})j") ==
              Layout::on_ranks(Layout::chunk(0, 3), odd));
  BOOST_CHECK(layout_of(R"j({"replicated": true, "ranks": [5, 1, 3]})j") ==
              Layout::on_ranks(Layout::replicated(), odd));
  BOOST_CHECK(layout_of(R"j({"blockcyclic": {"block": [1, 4], "grid": [3, 1]}, "ranks": [5, 1, 3]})j") ==
              Layout::on_ranks(Layout::block_cyclic({1, 4}, {3, 1}), odd));
}

BOOST_AUTO_TEST_CASE(a_flat_parameter_over_tensor_parallel_slices) {
  const Case job = parse_case(R"j({"model": "llama3-8b", "layers": 1, "embeddings": false, "states": ["m", "v"],
    "source": {"ranks": 4, "rules": {"*": {"flat": [["*"]], "world": 2, "within": {
      "row": {"chunk": 0, "over": 2}, "col": {"mesh": [2], "placements": ["S(1)"]},
      "rep": {"mesh": [2], "placements": ["R"]}}}}},
    "target": {"ranks": 4, "rules": {"*": {"chunk": 0, "over": 4}}}})j");
  const auto& tensors = job.source.layout.sections.at(0).manifest->tensors;
  BOOST_REQUIRE(tensors.size() == 18U);
  ElementCount slice = 0;
  for (std::size_t i = 0; i < tensors.size(); i += 2) {
    const ElementCount all = volume_of(tensors[i].spec.shape);
    slice += tensors[i].spec.shape.size() == 1 ? all : all / 2;
  }
  BOOST_TEST(tensors[0].layout.local_elements(tensors[0].spec.shape, Rank{3}) == slice / 2);
  BOOST_TEST(job.source.buffers.at(0).at(16) == 0U);  // one buffer per state
  BOOST_TEST(job.source.buffers.at(0).at(17) == 1U);
  BOOST_TEST(job.target.buffers.at(0).at(17) == 17U);
}

BOOST_AUTO_TEST_CASE(pipeline_stages_have_their_layers_and_ranks) {
  const Case job = parse_case(R"j({"model": "llama3-8b", "layers": 5, "states": ["m"],
    "source": {"ranks": 6, "lost": [3], "pipeline": 3, "rules": {
      "*": {"mesh": [2], "placements": ["S(0)"], "ranks": [1, 0]}, "rep": {"replicated": true}}},
    "target": {"ranks": 4, "pipeline": 2, "rules": {
      "*": {"flat": [["*"]], "world": 2}, "rep": {"blockcyclic": {"block": [8], "grid": [2]}}}}})j");
  const auto& sections = job.source.layout.sections;
  BOOST_REQUIRE(sections.size() == 3U);
  BOOST_TEST((sections[1].ranks == std::vector<Rank>{Rank{2}}));
  BOOST_TEST((sections[2].ranks == std::vector<Rank>{Rank{4}, Rank{5}}));
  BOOST_TEST(sections[0].manifest->ranks == 6);
  const auto names = [](const Section& section) {
    const auto& tensors = section.manifest->tensors;
    return tensors.front().spec.key.fqn + " .. " + tensors.back().spec.key.fqn;
  };
  BOOST_TEST(names(sections[0]) == "model.embed_tokens.weight .. model.layers.1.mlp.down_proj.weight");
  BOOST_TEST(names(sections[1]) == "model.layers.2.input_layernorm.weight .. model.layers.3.mlp.down_proj.weight");
  BOOST_TEST(names(sections[2]) == "model.layers.4.input_layernorm.weight .. lm_head.weight");
  const TensorLayout& norm = sections[1].manifest->tensors.at(0);
  const TensorLayout& query = sections[1].manifest->tensors.at(1);
  for (int rank = 0; rank < 6; ++rank) {
    BOOST_TEST(norm.layout.boxes_of({4096}, Rank{rank}).size() == (rank / 2 == 1 ? 1U : 0U));
  }
  BOOST_TEST(query.layout.boxes_of({4096, 4096}, Rank{2}).at(0).box.lower(0) == 2048);
  BOOST_TEST(query.layout.boxes_of({4096, 4096}, Rank{3}).at(0).box.lower(0) == 0);
  // Each stage has its own flat parameters.
  const auto& last = job.target.layout.sections.at(1).manifest->tensors;
  ElementCount elements = 0;
  for (const TensorLayout& tensor : last) {
    if (tensor.spec.shape.size() == 2) elements += volume_of(tensor.spec.shape);
  }
  BOOST_TEST(last.at(1).layout.local_elements(last[1].spec.shape, Rank{2}) == elements / 2);
  BOOST_TEST(last.at(1).layout.local_elements(last[1].spec.shape, Rank{1}) == 0);
}

BOOST_AUTO_TEST_CASE(one_element_tensors_fit_every_rule) {
  const char* const tensors =
      R"j({"fqn": "a", "shape": [4, 4]}, {"fqn": "s", "shape": []}, {"fqn": "t", "shape": [1, 1, 1]})j";
  for (const char* rule : {R"j({"chunk": 1, "over": 2})j", R"j({"mesh": [2], "placements": ["S(1)"]})j",
                           R"j({"blockcyclic": {"block": [2, 2], "grid": [1, 2]}})j",
                           R"j({"flat": [["*"]], "world": 1, "within": {"chunk": 1, "over": 2}})j",
                           R"j({"boxes": {"0": [[[0, 0], [4, 4]]]}})j"}) {
    const Case job = parse_case(
        case_text(tensors, std::string(R"j("ranks": 2, "rules": {"*": )j").append(rule).append("}"), whole_side));
    BOOST_TEST(job.by_value.size() == 2U);
    BOOST_TEST(job.source.layout.sections.at(0).manifest->tensors.size() == 1U);
  }
}

BOOST_AUTO_TEST_CASE(mangled_text_is_accepted_or_refused_but_never_worse) {
  const unsigned seed = std::random_device{}();
  BOOST_TEST_MESSAGE("seed " << seed);
  BOOST_TEST_CONTEXT("seed " << seed) {
    std::mt19937 random(seed);
    const auto pick = [&](std::size_t below) {
      return std::uniform_int_distribution<std::size_t>(0, below - 1)(random);
    };
    const std::string bits = R"j({}[],:"0123456789-.eERS()truefalsn\ )j";
    std::size_t refused = 0;
    for (int round = 0; round < 20'000; ++round) {
      std::string text = example;
      for (std::size_t change = 1 + pick(4); change > 0; --change) {
        const std::size_t at = pick(text.size());
        switch (pick(5)) {
          case 0: text.erase(at, 1 + pick(8)); break;
          case 1: text.insert(at, 1, bits[pick(bits.size())]); break;
          case 2: text[at] = bits[pick(bits.size())]; break;
          case 3: text[at] = static_cast<char>(pick(256)); break;
          case 4: text.insert(at, text.substr(pick(text.size()), 1 + pick(60))); break;
        }
      }
      if (!accepted(text)) ++refused;
    }
    BOOST_TEST(refused > 10'000);
  }
}

BOOST_AUTO_TEST_SUITE_END()
