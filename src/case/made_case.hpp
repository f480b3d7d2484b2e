// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "case/models.hpp"
#include "case/parallel.hpp"

namespace shardwire {

/// A case that is made of the tensors of a model: they move from one layout to another with the states of an optimizer.
struct MadeCase {
  std::string name;
  std::vector<CaseTensor> tensors;
  std::string optimizer;
  Degrees source;
  Degrees target;
};

/// "adamw, adam8bit, ..": the first one is the default.
std::string optimizer_names();

/// The text of a case file. Errors: throws CaseError for an unknown optimizer, for degrees that do not fit the experts, and, by
/// name, for a tensor whose states would not be split as the tensor is.
std::string case_text(const MadeCase& made);

}  // namespace shardwire
