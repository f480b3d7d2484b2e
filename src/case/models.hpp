// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shardwire/box.hpp"

namespace shardwire {

/// A tensor, or those of its states that have a shape or a rule of their own.
struct CaseTensor {
  std::string fqn;
  Extents shape;
  std::string rule{};
  int layer = 0;              ///< in a model: -1 stands before all layers, the number of layers after them
  std::size_t states = 0;     ///< which list of TensorList::states it has
  std::size_t listed = 0;     ///< its number in the file
  bool states_alone = false;  ///< only states with a shape or a rule of their own
  std::string split_as{};     ///< a name that tensor parallelism splits alike; empty: its own
};

/// Attention through low ranks, as in DeepSeek. With plain queries, query_rank is 0.
struct Latent {
  Extent query_rank = 0;
  Extent kv_rank = 0;    ///< 0: attention without low ranks
  Extent plain_dim = 0;  ///< of a head, without positions
  Extent rope_dim = 0;
  Extent value_dim = 0;
};

/// Experts of each layer that is not in `dense_layers`; none if `count` is 0.
struct Experts {
  int count = 0;
  Extent hidden = 0;
  bool mixtral = false;  ///< the names of Mixtral
  bool correction_bias = false;
  std::string shared{};  ///< name of the expert that all tokens pass
  Extent shared_hidden = 0;
  bool shared_gate = false;
  std::vector<int> dense_layers{};
};

/// The vision tower, as in Gemma 3: SigLIP without its head, and a projection to the width of the language model.
struct Vision {
  int layers = 0;  ///< 0: no vision tower
  Extent width = 0;
  Extent hidden = 0;
  Extent channels = 0;
  Extent patch = 0;  ///< pixels of a side
  Extent patches = 0;
};

/// Models that share names of modules.
enum class Family { llama, gpt2, gpt_bigcode, gpt_neox, bloom, falcon, opt, phi };

/// The numbers and flags that decide names and shapes of a model's tensors, in the words of the transformers library.
struct Model {
  std::string name;
  int layers = 0;
  Extent vocabulary = 0;
  Extent width = 0;
  Extent hidden = 0;  ///< of a dense feed-forward part
  Extent heads = 0;
  Extent kv_heads = 0;
  Extent head_dim = 0;
  bool tied = false;  ///< the embedding serves as lm_head
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  bool head_norms = false;   ///< queries and keys are normed
  bool outer_norms = false;  ///< attention and feed-forward part are normed before and after

  Latent latent{};
  Experts experts{};
  Vision vision{};
  std::string prefix{};  ///< of the language model's names

  // Families but llama.
  Family family = Family::llama;
  Extent positions = 0;                   ///< of their embedding, in families that have one
  Extent embedding_width = 0;             ///< 0: width
  Extent qkv_width = 0;                   ///< of queries, keys and values in one tensor
  std::vector<std::string_view> norms{};  ///< of a layer, where a config chooses them
  bool final_norm = true;                 ///< after all layers
};

/// Names of the rules of the models that case files name.
inline constexpr std::string_view model_rules[] = {"row", "col", "rep", "expert"};

/// Null for an unknown name. Shapes: public configurations of the models.
const Model* find_model(std::string_view name);
/// "llama3-8b, llama3-70b, .."
std::string model_names();
/// Tensors of the first `layers` layers, in the order of a checkpoint, with rules of model_rules.
std::vector<CaseTensor> tensors_of(const Model& model, int layers, bool embeddings);

}  // namespace shardwire
