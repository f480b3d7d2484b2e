// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "catalog/tensor_places.hpp"
#include "restore/binding.hpp"
#include "shardwire/catalog.hpp"

namespace shardwire::restore {

/// A wanted tensor that a fabric cannot read into, though it reads into other memory of the same device.
struct UnfitTarget {
  std::size_t entry = 0;  ///< of the catalog
  std::string why;        ///< for people
};
/// The first on this device; empty: none. `places`: of the wanted tensors.
std::optional<UnfitTarget> unfit_target(const transport::Endpoint& endpoint, const TensorPlaces& places, int device);

/// Memory that devices of this process can load from, and wanted memory that fabrics can read into, for one restore.
/// Asks the driver or the fabric each question once.
/// Threads: loop thread only.
class DeviceReach {
 public:
  /// Ownership: borrows both. `places`: of `wanted`.
  DeviceReach(const Catalog& wanted, const TensorPlaces& places) : wanted_(wanted), places_(places) {}

  /// A wanted tensor lies on a device.
  [[nodiscard]] bool wants_devices() const { return !places_.empty(); }
  /// Device memory is involved on either side.
  [[nodiscard]] bool touches_devices(const Binding& binding) const;
  /// Access of the fabric at this index of `connected` to a region whose bytes are wanted on `device`.
  [[nodiscard]] RegionAccess access_into(const Binding& binding, const SourceRegion& region, std::size_t fabric,
                                         int device);
  /// Whether streams of `device` load from memory of the other one. `has_peer_access`: see memory::DeviceAllocation.
  [[nodiscard]] bool loads_from(int device, int other, bool has_peer_access);
  /// Reason, for people. Requires: loads_from() has returned false.
  [[nodiscard]] const std::string& why_not_loaded(int device, int other, bool has_peer_access) const;
  /// Devices of this process whose wanted memory the endpoint can read into as a whole. `fabric`: its index.
  [[nodiscard]] std::vector<int> devices_read_into(const transport::Endpoint& endpoint, std::size_t fabric);
  /// Of this device's memory; 0: unknown.
  [[nodiscard]] double memory_bytes_per_second(int device);
  /// Known reasons for staging device memory through host memory; none: all of it is mapped or read.
  [[nodiscard]] std::optional<std::vector<std::string>> why_not_direct(const Binding& binding);
  /// Number of bytes from this source that the fabric at this index of `connected` reads directly into place.
  [[nodiscard]] ByteCount bytes_read_by(const Binding& binding, std::size_t fabric);

 private:
  /// Device memory is involved on either side of the tensor at this position, and messages carry it.
  [[nodiscard]] bool is_staged(const Binding& binding, std::size_t position);

  const Catalog& wanted_;
  const TensorPlaces& places_;
  std::map<std::tuple<int, int, bool>, std::string> why_not_loaded_;  // as in loads_from(); empty: it loads
  std::map<int, double> memory_speeds_;                               // by device
  std::map<std::pair<std::size_t, int>, bool>
      fits_fabric_;  // by fabric and device: it reads into all wanted memory there
  std::set<std::string> why_not_into_;
};

}  // namespace shardwire::restore
