// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/bootstrap.hpp"
#include "shardwire/box.hpp"
#include "shardwire/costs.hpp"
#include "shardwire/error.hpp"
#include "shardwire/layout.hpp"
#include "shardwire/memory.hpp"
#include "shardwire/param_groups.hpp"
#include "shardwire/plan.hpp"
#include "shardwire/relabel.hpp"
#include "shardwire/report.hpp"
#include "shardwire/session.hpp"
#include "shardwire/tensor.hpp"
#include "shardwire/types.hpp"
#include "shardwire/value.hpp"
#include "shardwire/version.hpp"
