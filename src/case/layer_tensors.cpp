// SPDX-License-Identifier: Apache-2.0
#include "case/layer_tensors.hpp"

#include <utility>

#include "case/split.hpp"

namespace shardwire {

LayerTensors::LayerTensors(std::string prefix, int layer) : prefix_(std::move(prefix)), layer_(layer) {
}

void LayerTensors::add(std::string_view name, Extents shape, std::string_view split_as) {
  CaseTensor tensor{.fqn = prefix_ + std::string(name), .shape = std::move(shape), .layer = layer_};
  if (!split_as.empty()) tensor.split_as = std::string(split_as) + std::string(name.substr(name.rfind('.')));
  const Split split = split_of(tensor);
  tensor.rule = split.expert >= 0 ? "expert" : word_of(split);
  tensors_.push_back(std::move(tensor));
}

void LayerTensors::add_linear(const std::string& name, Extent out, Extent in, bool bias, std::string_view split_as) {
  add(name + ".weight", {out, in}, split_as);
  if (bias) add(name + ".bias", {out}, split_as);
}

void LayerTensors::add_norm(const std::string& name, Extent width, bool bias) {
  add(name + ".weight", {width});
  if (bias) add(name + ".bias", {width});
}

std::vector<CaseTensor> LayerTensors::take() {
  return std::move(tensors_);
}

}  // namespace shardwire
