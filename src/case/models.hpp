// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardwire/box.hpp"

namespace shardwire {

/// A tensor, or those of its states that have a shape or a rule of their own.
struct CaseTensor {
  std::string fqn;
  Extents shape;
  std::string rule;
  int layer = 0;              ///< in a model: -1 stands before all layers, the number of layers after them
  std::size_t states = 0;     ///< which list of TensorList::states it has
  std::size_t listed = 0;     ///< its number in the file
  bool states_alone = false;  ///< only states with a shape or a rule of their own
};

struct Model {
  std::string_view name;
  int layers;
  /// Parameters of one layer, without their prefix.
  std::vector<CaseTensor> (*layer)(const Model& model, int index);
  Extent vocabulary;
  Extent width;
  Extent hidden;  ///< of a dense feed-forward part
};

/// Names of the rules that models use.
inline constexpr std::string_view model_rules[] = {"row", "col", "rep", "expert"};

/// Null for an unknown name. Shapes: public configurations of the models.
const Model* find_model(std::string_view name);
/// "llama3-8b, llama3-70b, .."
std::string model_names();
/// Tensors of the first `layers` layers, in the order of a checkpoint.
std::vector<CaseTensor> tensors_of(const Model& model, int layers, bool embeddings);

}  // namespace shardwire
