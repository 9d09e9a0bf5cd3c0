"""The dialect of OpenAI's Responses API and of the OpenResponses specification, for clients.

routing_info                          the checked fields of a request that routing needs
request_decoder, input_items, tools   a client's request to canonical chat
response_codec, output_items          a complete response from canonical chat
custom_input                          the text of custom tool calls
stream_encoder                        an upstream's deltas to a client's stream
reasoning                             an upstream's thinking in `encrypted_content`, and back
codec                                 translates for upstreams with another dialect
request_passthrough                   requests to upstreams that have the Responses API
response_passthrough, stream_passthrough   their responses, unchanged
stored                                the items of stored responses
token_count                           responses of `/v1/responses/input_tokens`

There is no variable `dialect`: an upstream with the Responses API also has chat completions, and is of that dialect.
"""
