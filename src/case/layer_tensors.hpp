// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "case/models.hpp"

namespace shardwire {

/// Collects the tensors of one layer, or of the part of a model before or after all layers, with the rules of their names.
class LayerTensors {
 public:
  LayerTensors(std::string prefix, int layer);

  /// `split_as`: see CaseTensor. Here, and below, it is the name of a module.
  void add(std::string_view name, Extents shape, std::string_view split_as = {});
  /// A weight of (out, in), and a bias.
  void add_linear(const std::string& name, Extent out, Extent in, bool bias = false, std::string_view split_as = {});
  void add_norm(const std::string& name, Extent width, bool bias = false);
  [[nodiscard]] std::vector<CaseTensor> take();

 private:
  std::string prefix_;
  int layer_;
  std::vector<CaseTensor> tensors_;
};

}  // namespace shardwire
