"""The wire format of an HLO module: the messages and fields that are read or written, as a table.

Fields that are not listed are carried through unchanged (protobuf keeps unknown fields), so a module that is
read, edited and written loses nothing.

References: the public field numbers of XLA's `hlo.proto` and `xla_data.proto`, unchanged from jaxlib 0.4.13 to 0.5.3.
"""

from alpa_dejavu._util.protobuf_messages import Fields, message_classes

_MESSAGES: dict[str, Fields] = {
    "LayoutProto": {"minor_to_major": (1, "[int64]")},
    "ShapeProto": {
        "element_type": (2, "int32"), "dimensions": (3, "[int64]"), "tuple_shapes": (4, "[ShapeProto]"),
        "layout": (5, "LayoutProto"), "is_dynamic_dimension": (6, "[bool]"),
    },
    "ProgramShapeProto": {
        "parameters": (1, "[ShapeProto]"), "result": (2, "ShapeProto"), "parameter_names": (3, "[string]"),
    },
    "OpMetadata": {"op_name": (2, "string")},
    "LiteralProto": {
        "shape": (1, "ShapeProto"), "preds": (2, "[bool]"), "s8s": (15, "bytes"), "u8s": (3, "bytes"),
        "s32s": (4, "[int32]"), "s64s": (5, "[int64]"), "u32s": (6, "[uint32]"), "u64s": (7, "[uint64]"),
        "f32s": (8, "[float]"), "f64s": (9, "[double]"), "f16s": (11, "bytes"), "bf16s": (13, "bytes"),
        "u16s": (16, "bytes"), "s16s": (17, "bytes"), "c64s": (12, "[float]"), "c128s": (18, "[double]"),
        "f8e5m2s": (19, "bytes"), "f8e4m3fns": (20, "bytes"), "s4s": (21, "bytes"), "u4s": (22, "bytes"),
        "f8e4m3b11fnuzs": (23, "bytes"), "f8e5m2fnuzs": (24, "bytes"), "f8e4m3fnuzs": (25, "bytes"),
    },
    "WindowDimension": {
        "size": (1, "int64"), "stride": (2, "int64"), "padding_low": (3, "int64"), "padding_high": (4, "int64"),
        "window_dilation": (5, "int64"), "base_dilation": (6, "int64"),
    },
    "Window": {"dimensions": (1, "[WindowDimension]")},
    "PaddingConfigDimension": {
        "edge_padding_low": (1, "int64"), "edge_padding_high": (2, "int64"), "interior_padding": (3, "int64"),
    },
    "PaddingConfig": {"dimensions": (1, "[PaddingConfigDimension]")},
    "GatherDimensionNumbers": {
        "offset_dims": (1, "[int64]"), "collapsed_slice_dims": (2, "[int64]"), "start_index_map": (3, "[int64]"),
    },
    "ScatterDimensionNumbers": {
        "update_window_dims": (1, "[int64]"), "inserted_window_dims": (2, "[int64]"),
        "scatter_dims_to_operand_dims": (3, "[int64]"),
    },
    "ConvolutionDimensionNumbers": {
        "input_batch_dimension": (7, "int64"), "input_feature_dimension": (8, "int64"),
        "kernel_input_feature_dimension": (3, "int64"), "kernel_output_feature_dimension": (4, "int64"),
        "kernel_spatial_dimensions": (6, "[int64]"), "output_batch_dimension": (9, "int64"),
        "output_feature_dimension": (10, "int64"),
    },
    "DotDimensionNumbers": {
        "lhs_contracting_dimensions": (1, "[int64]"), "rhs_contracting_dimensions": (2, "[int64]"),
        "lhs_batch_dimensions": (3, "[int64]"), "rhs_batch_dimensions": (4, "[int64]"),
    },
    "OpSharding": {
        "type": (1, "int32"), "tile_shape": (2, "ShapeProto"), "tile_assignment_dimensions": (3, "[int64]"),
        "tile_assignment_devices": (4, "[int64]"), "tuple_shardings": (5, "[OpSharding]"),
        "replicate_on_last_tile_dim": (6, "bool"), "metadata": (7, "[OpMetadata]"), "iota_reshape_dims": (9, "[int64]"),
        "iota_transpose_perm": (10, "[int32]"),
    },
    "ReplicaGroup": {"replica_ids": (1, "[int64]")},
    "SliceDimensions": {"start": (1, "int64"), "limit": (2, "int64"), "stride": (3, "int64")},
    "HloInstructionProto": {
        "name": (1, "string"), "opcode": (2, "string"), "shape": (3, "ShapeProto"), "metadata": (7, "OpMetadata"),
        "literal": (8, "LiteralProto"), "parameter_number": (9, "int64"), "tuple_index": (13, "int64"),
        "dimensions": (14, "[int64]"), "window": (15, "Window"),
        "convolution_dimension_numbers": (16, "ConvolutionDimensionNumbers"), "feature_group_count": (50, "int64"),
        "batch_group_count": (58, "int64"), "slice_dimensions": (17, "[SliceDimensions]"),
        "dynamic_slice_sizes": (20, "[int64]"), "padding_config": (21, "PaddingConfig"), "distribution": (23, "int32"),
        "epsilon": (24, "float"), "channel_id": (26, "int64"), "custom_call_target": (28, "string"),
        "dot_dimension_numbers": (30, "DotDimensionNumbers"),
        "gather_dimension_numbers": (33, "GatherDimensionNumbers"), "gather_slice_sizes": (34, "[int64]"),
        "id": (35, "int64"), "operand_ids": (36, "[int64]"), "control_predecessor_ids": (37, "[int64]"),
        "called_computation_ids": (38, "[int64]"), "sharding": (40, "OpSharding"), "backend_config": (43, "bytes"),
        "replica_groups": (49, "[ReplicaGroup]"), "use_global_device_ids": (71, "bool"),
        "scatter_dimension_numbers": (48, "ScatterDimensionNumbers"), "custom_call_has_side_effect": (65, "bool"),
    },
    "HloComputationProto": {
        "name": (1, "string"), "instructions": (2, "[HloInstructionProto]"), "program_shape": (4, "ProgramShapeProto"),
        "id": (5, "int64"), "root_id": (6, "int64"),
    },
    "AliasEntryProto": {
        "output_shape_index": (1, "[int64]"), "parameter_number": (2, "int64"), "parameter_shape_index": (3, "[int64]"),
        "kind": (4, "int32"),
    },
    "HloInputOutputAliasProto": {"entries": (1, "[AliasEntryProto]")},
    "BufferDonorEntryProto": {"parameter_number": (1, "int64"), "parameter_shape_index": (2, "[int64]")},
    "HloBufferDonorProto": {"entries": (1, "[BufferDonorEntryProto]")},
    "HloModuleProto": {
        "name": (1, "string"), "entry_computation_name": (2, "string"), "computations": (3, "[HloComputationProto]"),
        "host_program_shape": (4, "ProgramShapeProto"), "id": (5, "int64"), "entry_computation_id": (6, "int64"),
        "input_output_alias": (8, "HloInputOutputAliasProto"), "buffer_donor": (18, "HloBufferDonorProto"),
        "spmd_output_sharding": (12, "OpSharding"), "spmd_parameters_shardings": (14, "[OpSharding]"),
    },
    "HloProto": {"hlo_module": (1, "HloModuleProto")},
}  # fmt: skip

_CLASSES = message_classes("alpa_dejavu.sharding.hlo", _MESSAGES)
HloProto = _CLASSES["HloProto"]
HloModuleProto = _CLASSES["HloModuleProto"]
HloComputationProto = _CLASSES["HloComputationProto"]
HloInstructionProto = _CLASSES["HloInstructionProto"]
OpSharding = _CLASSES["OpSharding"]
ShapeProto = _CLASSES["ShapeProto"]
LiteralProto = _CLASSES["LiteralProto"]
