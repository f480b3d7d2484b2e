// SPDX-License-Identifier: Apache-2.0
// The C API of shardwire. shardwire/c/types.h states the rules that hold for all functions.
#pragma once

#include "shardwire/c/bootstrap.h"
#include "shardwire/c/box.h"
#include "shardwire/c/catalog.h"
#include "shardwire/c/costs.h"
#include "shardwire/c/error.h"
#include "shardwire/c/layout.h"
#include "shardwire/c/memory.h"
#include "shardwire/c/operations.h"
#include "shardwire/c/options.h"
#include "shardwire/c/paths.h"
#include "shardwire/c/plan.h"
#include "shardwire/c/report.h"
#include "shardwire/c/session.h"
#include "shardwire/c/tensor.h"
#include "shardwire/c/types.h"
#include "shardwire/c/value.h"
#include "shardwire/c/version.h"
