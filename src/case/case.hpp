// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwire/plan.hpp"
#include "shardwire/session.hpp"
#include "shardwire/tensor.hpp"

namespace shardwire {

/// A refused case file. what() is one line that begins with the location: `line:column` for text that is not JSON, else
/// a path such as `source.rules.row.placements[1]`.
class CaseError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An entry of a side's rules.
struct CaseRule {
  std::string name;
  std::string layout;       ///< for people
  std::size_t tensors = 0;  ///< that it serves
};

/// One side of a case.
struct CaseSide {
  int ranks = 0;
  std::vector<CaseRule> rules{};
  std::vector<std::string> warnings{};  ///< of what is valid and most likely not meant; each begins with its location
  std::vector<Rank> lost;               ///< ascending; always empty for a target
  /// One section per pipeline stage; tensors of more than one element, in file order, states innermost; without the
  /// lost ranks.
  JobLayout layout;
  /// By section and tensor: number of the tensor's local buffer. Members of a flat parameter share one.
  std::vector<std::vector<std::uint32_t>> buffers;

  [[nodiscard]] bool is_lost(Rank rank) const { return std::ranges::binary_search(lost, rank); }
};

/// A job description: the tensors, and their layouts over the ranks of two sides.
struct Case {
  std::string name;
  std::size_t tensors = 0;           ///< as listed in the file, before states
  std::vector<std::string> states;   ///< names of those that some tensor has, and of those that the file lists for all
  std::size_t tensor_states = 0;     ///< of all tensors together
  std::vector<TensorSpec> by_value;  ///< one-element tensors, once per state; every rank that is not lost has them
  std::vector<std::pair<std::string, Value>> scalars;
  int ranks_per_host = 0;  ///< 0: not given
  CaseSide source;
  CaseSide target;
};

/// The bytes that all target ranks want together, without padding. Errors: throws Error{invalid_argument} on overflow.
ByteCount needed_bytes(const Case& job);

/// The one-element tensors that `target` wants and no source rank has: all of them if every source rank is lost, else
/// none. `also_lost`: source ranks that are lost in addition to those of the case.
std::vector<Gap> value_gaps(const Case& job, Rank target, std::span<const Rank> also_lost = {});

/// Reads a description from JSON text. Errors: throws CaseError.
Case parse_case(const std::string& text);
/// A JSON Schema (draft 2020-12) that all texts match which parse_case() accepts: case.schema.json.
std::string_view case_schema();

/// Reads a file, or standard input for "-". Errors: throws CaseError that begins with the file's name.
Case load_case(const std::string& path);

}  // namespace shardwire
