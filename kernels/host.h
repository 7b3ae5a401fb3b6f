// The operations of the host that index/ calls past Backend (backend.h): all of them, each with its contract where it
// is declared. Rows and tables here are the host's; what runs on codes, or in parallel, is a Backend's. index/ includes
// no other header of these (tests/house/include_test.cc), so that what kernels/ holds may move behind this one.
#ifndef SEINE_KERNELS_HOST_H_
#define SEINE_KERNELS_HOST_H_

#include "kernels/cpu/prefetch.h"
#include "kernels/ops/attend/attention.h"
#include "kernels/ops/attend/block_attention.h"
#include "kernels/ops/attend/window_means.h"
#include "kernels/ops/hash/hash_rows.h"
#include "kernels/ops/learn/oja_cpu.h"
#include "kernels/ops/learn/oja_rule.h"
#include "kernels/ops/low_rank/low_rank_cpu.h"
#include "kernels/ops/matrix/matrix.h"
#include "kernels/ops/rows/rows.h"
#include "kernels/ops/score_keys/score_keys_cpu.h"
#include "kernels/ops/select/select.h"

namespace seine::host {

// Rows: conversion, checks, means, dot products, exponentials (ops/rows/rows.h).
using cpu::AddExp;
using cpu::DotGather;
using cpu::DotRows;
using cpu::FirstNonFinite;
using cpu::MeanRow;
using cpu::Rotate;
using cpu::SumExp;
using cpu::ToFloat;

// Rows known again (ops/hash/hash_rows.h).
using cpu::HashRows;

// Memory that is read soon (cpu/prefetch.h).
using cpu::PrefetchFar;
using cpu::PrefetchRange;

// Attention over chosen rows (ops/attend/attention.h), and the means that stand for windows (window_means.h).
using cpu::Attend;
using cpu::AttendedRows;
using cpu::AttentionTask;
using cpu::PlaceRun;
using seine::EncodeWindowMeans;
using seine::WindowMeansBytes;

// Attention of blocks of query rows, and the masses of runs of keys (ops/attend/block_attention.h).
using cpu::AttendBlock;
using cpu::BlockTask;
using cpu::KeyTile;
using cpu::kRunKeys;
using cpu::kTileKeys;
using cpu::kTileRuns;
using cpu::RunMasses;

// Scores and running sums of keys (ops/score_keys/score_keys_cpu.h), and their largest (ops/select/select.h).
using cpu::AddToSums;
using cpu::CloseGroup;
using cpu::Range;
using cpu::ScoreKeys;
using seine::SelectLargest;

// Subspaces: products (ops/matrix/matrix.h), rows as codes (ops/low_rank/low_rank_cpu.h), Oja's rule (ops/learn).
using cpu::Learn;
using cpu::MatMul;
using cpu::MatrixView;
using cpu::Narrow;
using cpu::PaddedColumns;
using cpu::Rebuild;
using cpu::Widen;

}  // namespace seine::host

#endif  // SEINE_KERNELS_HOST_H_
