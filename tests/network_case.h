/* Descriptions with residual connections. */
#ifndef WF_NETWORK_CASE_H
#define WF_NETWORK_CASE_H

#define RELU "\"activation\":\"relu\""
#define CONV(name, norm, rest)                                                                     \
    "{\"op\":\"conv\",\"name\":\"" name "\",\"bias\":false,\"norm\":{\"kind\":\"batch\","          \
    "\"name\":\"" norm "\"}," rest "},"
#define CONV3(name, norm, rest) CONV(name, norm, "\"kernel\":3,\"padding\":1," rest)

/* clang-format off */
/* A ResNet of two basic blocks, the second with a convolution in its shortcut, with the names and
 * the parameter order of torchvision. */
static const char resnet_json[] =
    "{\"input\":[3,8,8],\"layers\":["
    CONV3("conv1", "bn1", "\"units\":4," RELU)
    CONV3("layer1.0.conv1", "layer1.0.bn1", "\"units\":4," RELU)
    CONV3("layer1.0.conv2", "layer1.0.bn2", "\"units\":4")
    "{\"op\":\"add\",\"from\":[3,1]," RELU "},"
    CONV3("layer2.0.conv1", "layer2.0.bn1", "\"units\":6,\"stride\":2," RELU)
    CONV3("layer2.0.conv2", "layer2.0.bn2", "\"units\":6")
    CONV("layer2.0.downsample.0", "layer2.0.downsample.1",
         "\"from\":4,\"units\":6,\"kernel\":1,\"stride\":2")
    "{\"op\":\"add\",\"from\":[6,7]," RELU ",\"pool\":{\"kind\":\"global\"}},"
    "{\"op\":\"linear\",\"name\":\"fc\",\"units\":5}]}";

/* x + W x, twice: a block that joins an orbit to itself, then a path through four other units. */
static const char loop_json[] =
    "{\"input\":[5],\"layers\":["
    "{\"op\":\"linear\",\"units\":17},"
    "{\"op\":\"linear\",\"units\":17},"
    "{\"op\":\"add\",\"from\":[1,2]," RELU "},"
    "{\"op\":\"linear\",\"units\":4},"
    "{\"op\":\"linear\",\"units\":17},"
    "{\"op\":\"add\",\"from\":[3,5]},"
    "{\"op\":\"linear\",\"units\":3}]}";
/* clang-format on */

#undef CONV
#undef CONV3
#undef RELU

#endif
