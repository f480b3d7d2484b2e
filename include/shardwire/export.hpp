// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Around `namespace shardwire` in a public header: what is declared there may be linked with. The library is compiled so that
/// everything else stays inside it. (Pragmas: of an attribute on the namespace, clang sees nothing where functions are defined.)
#define SHARDWIRE_API_BEGIN _Pragma("GCC visibility push(default)")
#define SHARDWIRE_API_END _Pragma("GCC visibility pop")

/// On private functions there, and on the definition of a class that public headers only name: they stay inside the library.
#define SHARDWIRE_LOCAL [[gnu::visibility("hidden")]]
