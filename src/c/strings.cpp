// SPDX-License-Identifier: Apache-2.0
#include "c/handles.hpp"

namespace shardwire::c_api {
SHARDWIRE_C_BEGIN

void shardwire_strings_free(shardwire_strings* strings) {
  destroy(strings);
}

size_t shardwire_strings_count(const shardwire_strings* strings) {
  return count_of(strings);
}

const char* shardwire_strings_at(const shardwire_strings* strings, size_t index, size_t* size_bytes) {
  if (index >= count_of(strings)) return nullptr;
  const std::string& string = (*peek(strings))[index];
  if (size_bytes) *size_bytes = string.size();
  return string.c_str();
}

const char* shardwire_version(void) {
  return version();
}

SHARDWIRE_C_END
}  // namespace shardwire::c_api
