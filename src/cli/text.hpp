// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "shardwire/error.hpp"
#include "shardwire/types.hpp"
#include "support/human.hpp"

namespace shardwire::cli {

using support::human_bytes;
using support::human_seconds;
using support::human_speed;
/// "256 B", "4 KiB", "64 MiB": binary units, not rounded.
std::string exact_bytes(ByteCount bytes);
/// "1.26 k", "570 k", "312"
std::string human_count(double count);
/// A name on one line, without terminal control sequences.
std::string printable(const std::string& name);
/// A JSON text with its quotes; invalid UTF-8 becomes U+FFFD.
std::string json_text(std::string_view text);
/// {"fqn","state","offset","size","rank"}: how reports and plans list regions without a holder.
std::string json_text(const Gap& gap);
/// "4096", "1K", "2G": K, M and G count by 1024. Errors: throws UsageError that names `option`.
ByteCount parse_bytes(std::string_view option, std::string_view text);

}  // namespace shardwire::cli
