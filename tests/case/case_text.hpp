// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace shardwire::test {

inline const char* const whole_side = R"j("ranks": 4, "rules": {"*": {"replicated": true}})j";

inline std::string case_text(const std::string& tensors, const std::string& source, const std::string& target,
                             const std::string& more = {}) {
  return R"j({"states": ["m"], "tensors": [)j" + tensors + R"j(], "source": {)j" + source + R"j(}, "target": {)j" +
         target + "}" + (more.empty() ? "" : ", " + more) + "}";
}

inline const char* const tensor_w = R"j({"fqn": "w", "shape": [8, 4], "rule": "r"})j";

inline std::string with_source(const std::string& source) {
  return case_text(tensor_w, source, whole_side);
}
inline std::string with_target(const std::string& target) {
  return case_text(tensor_w, whole_side, target);
}
inline std::string with_top(const std::string& more) {
  return case_text(tensor_w, whole_side, whole_side, more);
}
inline std::string with_tensors(const std::string& tensors) {
  return case_text(tensors, whole_side, whole_side);
}
inline std::string with_tensor(const std::string& fields) {
  return with_tensors(std::string("{").append(fields).append("}"));
}

}  // namespace shardwire::test
