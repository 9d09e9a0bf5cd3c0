/* The module `svc.gateway.net._direct_send`, which `svc.gateway.net.direct_send` documents. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <sys/socket.h>

#ifndef MSG_NOSIGNAL /* macOS. Python ignores SIGPIPE */
#define MSG_NOSIGNAL 0
#endif

#define MAX_BYTES_WITH_GIL 65536

typedef struct {
    PyObject_HEAD
    int fd;
} DirectSender;

static PyObject *create(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    int fd;
    if (keywords != NULL && PyDict_GET_SIZE(keywords) > 0)
        return PyErr_Format(PyExc_TypeError, "DirectSender() takes no keywords");
    if (!PyArg_ParseTuple(arguments, "i", &fd))
        return NULL;
    DirectSender *const self = (DirectSender *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->fd = fd;
    return (PyObject *)self;
}

static PyObject *send_now(DirectSender *self, PyObject *data)
{
    if (!PyBytes_CheckExact(data))
        return PyErr_Format(PyExc_TypeError, "send() takes bytes");
    const char *const start = PyBytes_AS_STRING(data);
    const size_t size = (size_t)PyBytes_GET_SIZE(data);
    ssize_t sent;
    /* To release the GIL costs more than a short send takes. To copy megabytes to the kernel takes milliseconds. */
    if (size <= MAX_BYTES_WITH_GIL) {
        sent = send(self->fd, start, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    } else {
        Py_BEGIN_ALLOW_THREADS
        sent = send(self->fd, start, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        Py_END_ALLOW_THREADS
    }
    return PyLong_FromSsize_t(sent < 0 ? 0 : sent);
}

static void dealloc(PyObject *self)
{
    PyTypeObject *const type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef METHODS[] = {{"send", (PyCFunction)send_now, METH_O, NULL}, {NULL, NULL, 0, NULL}};
static PyType_Slot SLOTS[] = {{Py_tp_new, create}, {Py_tp_dealloc, dealloc}, {Py_tp_methods, METHODS}, {0, NULL}};
static PyType_Spec SPEC = {"svc.gateway.net._direct_send.DirectSender", sizeof(DirectSender), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, SLOTS};
static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_direct_send", NULL, 0, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__direct_send(void)
{
    PyObject *const module = PyModule_Create(&MODULE);
    PyObject *const type = module == NULL ? NULL : PyType_FromSpec(&SPEC);
    if (type == NULL || PyModule_AddObject(module, "DirectSender", type) < 0) {
        Py_XDECREF(type);
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
