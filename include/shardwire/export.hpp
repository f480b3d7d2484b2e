// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Encloses `namespace shardwire` in a public header and exports its declarations. The library is compiled with all
/// other symbols hidden. (Pragmas, because clang ignores a visibility attribute on the namespace where functions are
/// defined.)
#define SHARDWIRE_API_BEGIN _Pragma("GCC visibility push(default)")
#define SHARDWIRE_API_END _Pragma("GCC visibility pop")

/// Hides private functions of exported classes, and the definitions of classes that public headers only declare.
#define SHARDWIRE_LOCAL [[gnu::visibility("hidden")]]
