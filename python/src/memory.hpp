// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "convert.hpp"

namespace shardwire::python {

/// A view, whose memory's type may say less than the tensor's.
struct Memory {
  View view;
  /// Type of the exporting object where it has one that numpy lacks for the tensor's: u8, u16 or u32 for bf16 and the like.
  std::optional<DType> stands_for{};
  ElementCount elements = -1;
  bool dense = true;
};

/// Memory of an object with DLPack or the buffer protocol; the object stays alive with the view.
/// Errors: throws Error{invalid_argument} naming `what`, also with the object's own reason.
Memory import_memory(nb::handle object, const std::string& what);
/// The view for a tensor of this type. Accepts unsigned integers of the same size, and bytes, for types that numpy lacks.
View view_for(const Memory& memory, DType dtype);
/// The view of a tensor for its buffer: a View, an object with memory, or None.
View view_from(nb::handle buffer, DType dtype, const std::string& what);
/// The view of a range of bytes.
View view_from(nb::handle buffer);

}  // namespace shardwire::python
