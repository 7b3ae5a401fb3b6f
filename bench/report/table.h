// Aligned text tables for people.
#ifndef SEINE_BENCH_REPORT_TABLE_H_
#define SEINE_BENCH_REPORT_TABLE_H_

#include <string>
#include <vector>

namespace seine::bench {

// The first column is set to the left, the others to the right. rows[0] is the heading.
std::string RenderTable(const std::vector<std::vector<std::string>>& rows);

}  // namespace seine::bench

#endif  // SEINE_BENCH_REPORT_TABLE_H_
