// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardwire/box.hpp"

namespace shardwire {

struct CaseTensor {
  std::string fqn;
  Extents shape;
  std::string rule;
  int layer = 0;  ///< in a model: -1 stands before all layers, the number of layers after them
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
