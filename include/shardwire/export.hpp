// SPDX-License-Identifier: Apache-2.0
#pragma once

/// On `namespace shardwire` in a public header: what is declared there may be linked with. The library is compiled so that
/// everything else stays inside it.
#define SHARDWIRE_API [[gnu::visibility("default")]]

/// On private functions there, and on the definition of a class that public headers only name: they stay inside the library.
#define SHARDWIRE_LOCAL [[gnu::visibility("hidden")]]
