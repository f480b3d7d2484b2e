// SPDX-License-Identifier: Apache-2.0
// An MPI program whose ranks hold rows of a matrix and need columns from some step on. exchange() is the collective form
// of publish() and restore(): all ranks change at once. mpi.h comes before shardwire/mpi.hpp.
#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <shardwire/mpi.hpp>
#include <shardwire/shardwire.hpp>
#include <string>
#include <vector>

using namespace shardwire;
using namespace std::chrono_literals;

namespace {

constexpr Extent rows = 1200, columns = 90;

/// Calls visit(element, row, column) for each element that `rank` has.
template <typename Visit>
void each(std::vector<double>& data, const Layout& layout, Rank rank, Visit visit) {
  for (const PlacedBox& part : layout.boxes_of({rows, columns}, rank)) {
    for (Extent row = 0; row < part.box.size[0]; ++row) {
      for (Extent column = 0; column < part.box.size[1]; ++column) {
        const auto place = part.local_offset + row * part.local_strides[0] + column * part.local_strides[1];
        visit(data[static_cast<std::size_t>(place)], part.box.offset[0] + row, part.box.offset[1] + column);
      }
    }
  }
}

/// Returns the number of wrong elements.
long change_layout(MPI_Comm comm) {
  Session session = Session::join(bootstrap_from_mpi(comm));
  const Rank me{session.rank()};
  const int ranks = session.world_size();
  const TensorSpec matrix{{"matrix", "value"}, DType::f64, {rows, columns}};
  const Layout by_rows = Layout::chunk(0, ranks), by_columns = Layout::chunk(1, ranks);
  std::vector<double> before(static_cast<std::size_t>(by_rows.local_elements(matrix.shape, me)));
  std::vector<double> after(static_cast<std::size_t>(by_columns.local_elements(matrix.shape, me)));
  each(before, by_rows, me,
       [](double& element, Extent row, Extent column) { element = static_cast<double>(row * columns + column); });

  Catalog held(me, ranks), wanted(me, ranks);
  held.add(matrix, by_rows, view(before));
  wanted.add(matrix, by_columns, view(after));
  const ExchangeResult result = session.exchange(held, wanted, {.timeout = 60s});

  long wrong = 0;
  each(after, by_columns, me, [&](double element, Extent row, Extent column) {
    wrong += element == static_cast<double>(row * columns + column) ? 0 : 1;
  });
  unsigned long long mine[] = {result.report.needed_bytes, result.report.moved_bytes}, all[2] = {};
  MPI_Reduce(mine, all, 2, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, comm);
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, comm);
  if (to_int(me) == 0) {
    std::printf("%d ranks: rows to columns, %llu bytes, %llu of them between ranks, %ld elements wrong\n", ranks,
                all[0], all[1], wrong);
  }
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int status = 1;
  try {
    status = change_layout(MPI_COMM_WORLD) == 0 ? 0 : 1;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: %s\n", std::string(to_string(error.code())).c_str(), error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);  // the others would wait in MPI
  }
  MPI_Finalize();
  return status;
}
