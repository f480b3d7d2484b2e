// SPDX-License-Identifier: Apache-2.0
#include "serve/publisher.hpp"

#include <utility>

#include "serve/refusal.hpp"

namespace shardwire {

Publisher::Publisher(Clock& clock, const Fabrics& fabrics, MemoryTable& memory, AttachedSockets& sockets,
                     memory::CopyQueue& copies, Serving::Staging staging, Readers::Own own)
    : publications_(fabrics, memory),
      leases_(clock, [this](const Publication& publication) { serving_.abort_reads(publication); }),
      serving_(publications_, leases_, fabrics, sockets, copies, staging, std::move(own)) {
}

void Publisher::retire(const std::shared_ptr<Publication>& publication, Duration timeout, Leases::Retired retired) {
  publications_.withdraw(*publication);
  leases_.retire(publication, timeout, std::move(retired));
}

void Publisher::replace(const std::shared_ptr<Publication>& old, std::shared_ptr<Publication> fresh, Duration timeout,
                        Leases::Retired retired) {
  publications_.replace(*old, std::move(fresh));
  leases_.retire(old, timeout, std::move(retired));
}

std::uint64_t Publisher::lease_own(const Publication& publication) {
  const auto found = live(publication.name);
  if (found.get() != &publication) refuse_request("the publication has been withdrawn");
  return leases_.grant(found, {});
}

}  // namespace shardwire
