// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/c/memory.h"

SHARDWIRE_C_BEGIN

/// Cost of one transfer method: linear in bytes and runs. A run is the longest contiguous byte range on both sides.
typedef struct shardwire_method_cost {
  double latency_seconds;  ///< from the first request to its first byte; counted once per peer
  double run_seconds;      ///< added by each run
  double bytes_per_second;
} shardwire_method_cost;

/// Cost of each method per transport and kind of memory, by which restores choose methods.
/// Threads: functions that take const costs may run concurrently.
typedef struct shardwire_costs shardwire_costs;
void shardwire_costs_free(shardwire_costs* costs);
/// Built-in costs: rough figures of a current server.
shardwire_code shardwire_costs_create(shardwire_costs** costs, shardwire_error** error);
/// Reads a file that `shardwire perf --calibrate` wrote. Missing entries keep their built-in values.
/// Errors: INVALID_ARGUMENT naming the file and the fault.
shardwire_code shardwire_costs_load(const char* path, shardwire_costs** costs, shardwire_error** error);
/// A measured cost, for a calibration file.
typedef struct shardwire_measured_cost {
  const char* transport;
  shardwire_memory_kind memory;
  shardwire_method method;
  shardwire_method_cost cost;
} shardwire_measured_cost;
/// Writes a calibration file, which shardwire_costs_load() and SHARDWIRE_CALIBRATION read. Replaces it atomically:
/// readers see the old or the new one. It has only the measured costs; `machine` is for people.
/// Errors: OUT_OF_RESOURCES if the file cannot be written.
shardwire_code shardwire_costs_save(const char* path, const char* machine, const shardwire_measured_cost* measured,
                                    size_t count, shardwire_error** error);
/// `transport` is "loopback", "shm", "tcp", "ucx", "libfabric" or "nccl"; any other name stands for an unknown network.
/// "tcp_encrypted" is tcp under `encrypt_payload`: messages whose cost is not set have the cost of tcp and the time of encryption.
shardwire_code shardwire_costs_at(const shardwire_costs* costs, const char* transport, shardwire_memory_kind memory,
                                  shardwire_method method, shardwire_method_cost* cost, shardwire_error** error);
shardwire_code shardwire_costs_set(shardwire_costs* costs, const char* transport, shardwire_memory_kind memory,
                                   shardwire_method method, const shardwire_method_cost* cost, shardwire_error** error);

SHARDWIRE_C_END
