// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/alltoallw.hpp"

#include <fmt/format.h>

#include <limits>
#include <stdexcept>

#include "shardwire/plan.hpp"

namespace shardwire::perf {

namespace {

MPI_Datatype element_of(ByteCount item_bytes) {
  switch (item_bytes) {
    case 2: return MPI_INT16_T;
    case 4: return MPI_FLOAT;
    case 8: return MPI_DOUBLE;
    default: return MPI_BYTE;
  }
}

int to_mpi(Extent value) {
  if (value > std::numeric_limits<int>::max()) throw std::runtime_error("MPI counts elements with int: too many");
  return static_cast<int>(value);
}

// Parts of one buffer that are sent to, or received from, one peer.
struct Parts {
  std::vector<MPI_Aint> starts;
  std::vector<MPI_Datatype> types;

  // `box` inside the row-major array that `placed` describes a part of.
  void add(const TensorSpec& spec, const PlacedBox& placed, const Box& box, ByteCount tensor_offset) {
    const ByteCount item = item_size(spec.dtype);
    std::vector<int> sizes;
    std::vector<int> parts;
    std::vector<int> begins;
    for (std::size_t dim = 0; dim < box.dims(); ++dim) {
      const Extent begin = box.offset[dim] - placed.box.offset[dim];
      // The first dimension of the array may be longer; that does not change the elements' positions.
      Extent size = begin + box.size[dim];
      if (dim > 0) size = placed.local_strides[dim - 1] / placed.local_strides[dim];
      const bool dense = dim == 0 || placed.local_strides[dim] * size == placed.local_strides[dim - 1];
      if (!dense || begin + box.size[dim] > size || placed.local_strides[box.dims() - 1] != 1) {
        throw std::runtime_error(fmt::format("no MPI subarray describes a box of {}", to_string(spec.key)));
      }
      sizes.push_back(to_mpi(size));
      parts.push_back(to_mpi(box.size[dim]));
      begins.push_back(to_mpi(begin));
    }
    if (element_of(item) == MPI_BYTE) {  // bytes of an element are one more dim
      sizes.push_back(to_mpi(static_cast<Extent>(item)));
      parts.push_back(sizes.back());
      begins.push_back(0);
    }
    MPI_Datatype type = MPI_DATATYPE_NULL;
    check_mpi(MPI_Type_create_subarray(static_cast<int>(sizes.size()), sizes.data(), parts.data(), begins.data(),
                                       MPI_ORDER_C, element_of(item), &type),
              "MPI_Type_create_subarray");
    types.push_back(type);
    starts.push_back(static_cast<MPI_Aint>(tensor_offset + static_cast<ByteCount>(placed.local_offset) * item));
  }

  // One type for all parts.
  MPI_Datatype build() {
    const std::vector<int> once(types.size(), 1);
    MPI_Datatype all = MPI_DATATYPE_NULL;
    check_mpi(MPI_Type_create_struct(static_cast<int>(types.size()), once.data(), starts.data(), types.data(), &all),
              "MPI_Type_create_struct");
    check_mpi(MPI_Type_commit(&all), "MPI_Type_commit");
    for (MPI_Datatype& type : types) MPI_Type_free(&type);
    return all;
  }
};

}  // namespace

void check_mpi(int code, const char* operation) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw std::runtime_error(fmt::format("{}: {}", operation, text));
}

Alltoallw::Alltoallw(const Setup& setup, const Case& job, int me, const StateMemory& held, const StateMemory& wanted) {
  const auto members = static_cast<std::size_t>(setup.members());
  std::vector<Parts> out(members);
  std::vector<Parts> in(members);
  const auto my_source = source_of(setup, job, me);
  const auto my_target = target_of(setup, job, me);
  Planner planner = planner_of(setup, job);
  for (int t = 0; t < job.target.ranks; ++t) {
    const Rank target{t};
    const Plan plan = planner.plan(target);
    const Schedule schedule = planner.schedule(plan);
    const auto receiver = static_cast<std::size_t>(member_of_target(setup, job, target));
    for (const ScheduledPiece& item : schedule.items) {
      const Box& box = schedule.box(item);
      if (my_source == item.source) {
        const TensorLayout& tensor = held.manifest().tensors[to_index(item.held)];
        out[receiver].add(tensor.spec, placed_around(tensor, item.source, box), box, held.offset_of(item.held));
      }
      if (my_target == target) {
        const TensorId id = plan.pieces[item.piece].tensor;
        const TensorLayout& tensor = wanted.manifest().tensors[to_index(id)];
        const auto sender = static_cast<std::size_t>(to_int(item.source));  // source ranks are the first members
        in[sender].add(tensor.spec, placed_around(tensor, target, box), box, wanted.offset_of(id));
      }
    }
  }
  for (const auto& [parts, side] : {std::pair(&out, &out_), std::pair(&in, &in_)}) {
    for (Parts& one : *parts) {
      const bool any = !one.types.empty();
      side->counts.push_back(any ? 1 : 0);
      side->displacements.push_back(0);
      side->types.push_back(any ? one.build() : MPI_BYTE);
    }
  }
}

Alltoallw::~Alltoallw() {
  for (Side* side : {&out_, &in_}) free_types(*side);
}

void Alltoallw::free_types(Side& side) {
  for (std::size_t i = 0; i < side.types.size(); ++i) {
    if (side.counts[i] > 0) MPI_Type_free(&side.types[i]);
  }
}

void Alltoallw::run(const std::byte* held, std::byte* wanted) const {
  check_mpi(MPI_Alltoallw(held, out_.counts.data(), out_.displacements.data(), out_.types.data(), wanted,
                          in_.counts.data(), in_.displacements.data(), in_.types.data(), MPI_COMM_WORLD),
            "MPI_Alltoallw");
}

}  // namespace shardwire::perf
